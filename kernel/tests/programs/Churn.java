// Java: threads that fill the heap so that it is collected many times, a mapped file, a child process, and
// stacks that overflow. The test `java` compares the output with that on Linux, so no line may depend on time
// or on the order of threads.
import java.io.RandomAccessFile;
import java.lang.management.ManagementFactory;
import java.nio.channels.FileChannel.MapMode;
import java.util.ArrayDeque;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.IntStream;

public class Churn {
    static long work(int seed) {
        var kept = new ArrayDeque<int[]>();
        long sum = 0;
        for (int round = 0; round < 20_000; round++) {
            int[] block = new int[1024];
            block[round % 1024] = seed + round;
            kept.addLast(block);
            if (kept.size() > 1000) {
                for (int value : kept.removeFirst()) sum += value;
            }
        }
        return sum;
    }

    static int depth(int n) {
        try {
            return depth(n + 1);
        } catch (StackOverflowError overflow) {
            return n;
        }
    }

    public static void main(String[] args) throws Exception {
        var pool = Executors.newFixedThreadPool(4);
        var futures = IntStream.range(0, 8).mapToObj(n -> pool.submit(() -> work(n))).toList();
        for (Future<Long> future : futures) System.out.println("work " + future.get());
        pool.shutdown();
        long collections = 0;
        for (var bean : ManagementFactory.getGarbageCollectorMXBeans()) collections += bean.getCollectionCount();
        System.out.println("collected " + (collections > 5));

        var counts = new ConcurrentHashMap<Integer, Integer>();
        IntStream.range(0, 200_000).parallel().forEach(n -> counts.merge(n % 97, 1, Integer::sum));
        System.out.println("counted " + counts.values().stream().mapToInt(n -> n).sum());

        try (var file = new RandomAccessFile("/tmp/mapped", "rw")) {
            var map = file.getChannel().map(MapMode.READ_WRITE, 0, 1 << 20);
            for (int at = 0; at < 1 << 20; at += 4096) map.putInt(at, at);
            map.force();
            file.seek(12288);
            System.out.println("mapped " + file.readInt() + " " + file.length());
        }
        var child = new ProcessBuilder("/bin/echo", "a child").start();
        System.out.print(new String(child.getInputStream().readAllBytes()));
        System.out.println("status " + child.waitFor());
        System.out.println("overflowed " + (depth(0) > 1000));
        try {
            System.out.println(((Object) null).hashCode());
        } catch (NullPointerException fault) {
            System.out.println("null");
        }
    }
}
