package workers

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// busyVariable, if set, makes the test binary keep one processor busy.
const busyVariable = "LUKV_TEST_BUSY"

func TestMain(m *testing.M) {
	if os.Getenv(busyVariable) == "" {
		os.Exit(m.Run())
	}
	task := &work{rounds: 1000}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		task.Run(0, 1000, 0)
	}
}

// BenchmarkContended runs regions while other processes compete for the
// processors. %one is the speed relative to that of one thread, measured before
// the others start.
func BenchmarkContended(b *testing.B) {
	task := &work{rounds: 300} // about half a microsecond per item
	for _, items := range []int{40, 160} {
		for _, busy := range []int{0, 1, 3} {
			for _, threads := range []int{1, 2} {
				b.Run(fmt.Sprintf("items=%d/busy=%d/threads=%d", items, busy, threads), func(b *testing.B) {
					quiet := time.Duration(1 << 62) // the minimum, not the mean: others may interfere
					for range 1000 {
						begin := time.Now()
						New(1).Run(items, 4, task)
						quiet = min(quiet, time.Since(begin))
					}
					for range busy {
						c := exec.Command(os.Args[0])
						c.Env = append(os.Environ(), busyVariable+"=1", "GOMAXPROCS=1")
						if err := c.Start(); err != nil {
							b.Fatal(err)
						}
						defer func() {
							_ = c.Process.Kill()
							_ = c.Wait()
						}()
					}
					if busy > 0 {
						time.Sleep(100 * time.Millisecond)
					}
					p := newPool(b, threads)
					for b.Loop() {
						p.Run(items, 4, task)
					}
					b.ReportMetric(100*quiet.Seconds()*float64(b.N)/b.Elapsed().Seconds(), "%one")
				})
			}
		}
	}
}
