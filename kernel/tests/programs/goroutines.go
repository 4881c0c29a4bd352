// Goroutines that communicate over channels, and garbage that is collected while they run. The tests
// `goroutines`, `goroutines-pressure` and `qemu-user` compare the output with that on Linux, so no line may
// depend on time or on the order of goroutines.
package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sort"
	"sync"
	"time"
)

type tree struct {
	left, right *tree
	load        [4]int
}

func grow(depth int) *tree {
	if depth == 0 {
		return &tree{}
	}
	return &tree{left: grow(depth - 1), right: grow(depth - 1), load: [4]int{depth}}
}

func (t *tree) count() int {
	if t == nil {
		return 0
	}
	return 1 + t.left.count() + t.right.count()
}

// Numbers pass through a filter for each prime found so far. Each filter is a goroutine.
func primes(most int) []int {
	var found []int
	source := make(chan int)
	go func(to chan<- int) {
		for n := 2; n <= most; n++ {
			to <- n
		}
		close(to)
	}(source)
	for {
		prime, more := <-source
		if !more {
			return found
		}
		found = append(found, prime)
		next := make(chan int)
		go func(from <-chan int, to chan<- int) {
			for n := range from {
				if n%prime != 0 {
					to <- n
				}
			}
			close(to)
		}(source, next)
		source = next
	}
}

func forests() {
	var all sync.WaitGroup
	counts := make([]int, 8)
	for n := range counts {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 20 {
				counts[n] += grow(10).count()
			}
		}()
	}
	all.Wait()
	fmt.Println("trees", counts)
}

func timers() {
	var lock sync.Mutex
	var order []int
	var all sync.WaitGroup
	for n := range 5 {
		all.Add(1)
		time.AfterFunc(time.Duration(5-n)*20*time.Millisecond, func() {
			lock.Lock()
			order = append(order, n)
			lock.Unlock()
			all.Done()
		})
	}
	all.Wait()
	sort.Ints(order)
	fmt.Println("timers", order)
}

func main() {
	debug.SetGCPercent(20)
	found := primes(1000)
	fmt.Println("primes", len(found), found[len(found)-1])
	forests()
	timers()
	before := map[int][]byte{}
	for n := range 2000 {
		before[n%100] = make([]byte, 10000+n)
	}
	runtime.GC()
	debug.FreeOSMemory()
	var state runtime.MemStats
	runtime.ReadMemStats(&state)
	fmt.Println("collected", state.NumGC > 5, "kept", len(before))
	func() {
		defer func() { fmt.Println("recovered", recover()) }()
		var nowhere *tree
		nowhere.load[1]++
	}()
}
