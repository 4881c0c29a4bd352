# Ruby: threads, children, fibers, a heap that is collected and compacted. The test `ruby` compares the output
# with that on Linux, so no line may depend on time or on the order of threads.
require "digest"
require "timeout"
$stdout.sync = true

queue, done = Queue.new, Queue.new
workers = 4.times.map { Thread.new { while (n = queue.pop) do done << n * n end } }
1000.times { |n| queue << n }
workers.each { queue << nil }
workers.each(&:join)
puts "threads #{done.size} #{Array.new(done.size) { done.pop }.sum}"

sums = 4.times.map do |n|
  reader, writer = IO.pipe
  child = fork { reader.close; writer.write((n..n + 100_000).sum); exit!(n) }
  writer.close
  text = reader.read
  Process.wait(child)
  "#{text}:#{$?.exitstatus}"
end
puts "children #{sums.join(" ")}"

tables = 30.times.map { |n| (0...20_000).to_h { |k| ["key#{k}", "value#{k * n}"] } }
kept = tables.map { |table| table.select { |key, _| key.end_with?("7") } }
tables = nil
GC.start
GC.compact
puts "kept #{kept.sum(&:size)} #{Digest::MD5.hexdigest(kept.map { |table| table.values.join }.join)}"
puts "collected #{GC.count > 5}"

fibers = 2000.times.map { |n| Fiber.new { Fiber.yield n; n * 2 } }
puts "fibers #{fibers.sum(&:resume)} #{fibers.sum(&:resume)}"

File.write("/tmp/lines", (1..50_000).map { |n| "line #{n}\n" }.join)
puts "sorted #{Digest::MD5.hexdigest(`/bin/sort -r /tmp/lines`)} #{$?.exitstatus}"

def deep(n) = deep(n + 1)

def raises(kind)
  yield
rescue kind
  puts kind
end
raises(SystemStackError) { deep(0) }
raises(Timeout::Error) { Timeout.timeout(0.1) { sleep } }
trap("USR1") { puts "signal" }
Process.kill("USR1", Process.pid)
sleep 0.1
