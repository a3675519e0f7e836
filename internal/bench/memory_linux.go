package bench

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// field returns a field, in bytes, of a file of "Name:   123 kB" lines; 0 if there is none.
func field(file, name string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), name+":")
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
		if err != nil {
			return 0
		}
		return n << 10
	}
	return 0
}

// privateMemory returns the number of resident bytes that are not file pages.
func privateMemory() int64 { return field("/proc/self/status", "RssAnon") }

// resetPeak resets peakMemory, the largest resident size, and reports whether the
// system did so.
func resetPeak() bool { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) == nil }

func peakMemory() int64 { return field("/proc/self/status", "VmHWM") }

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// watchPrivate samples the resident bytes that are not file pages, less the bytes
// that besides returns, every 10 ms until stop is called; stop returns the maximum.
// Sampling allocates nothing on the Go heap.
func watchPrivate(besides func() int64) (stop func() int64) {
	f, err := os.Open("/proc/self/statm")
	if err != nil {
		return func() int64 { return 0 }
	}
	quit, most := make(chan struct{}), make(chan int64)
	page := int64(os.Getpagesize())
	var text [128]byte
	look := func() int64 {
		n, err := unix.Pread(int(f.Fd()), text[:], 0)
		if err != nil {
			return 0
		}
		return anonymousPages(text[:n])*page - besides()
	}
	go func() {
		defer f.Close()
		high := look()
		for {
			select {
			case <-quit:
				most <- max(high, look())
				return
			default:
			}
			time.Sleep(10 * time.Millisecond)
			high = max(high, look())
		}
	}()
	return func() int64 {
		close(quit)
		return <-most
	}
}

// anonymousPages returns the difference between the second and the third number of a
// statm line: resident pages and those of files.
func anonymousPages(line []byte) int64 {
	var x [3]int64
	for i := range x {
		for len(line) > 0 && line[0] != ' ' {
			x[i] = 10*x[i] + int64(line[0]-'0')
			line = line[1:]
		}
		if len(line) > 0 {
			line = line[1:]
		}
	}
	return x[1] - x[2]
}
