package bench

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"

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

func totalMemory() int64 { return field("/proc/meminfo", "MemTotal") }

// freeMemory returns the bytes that the process may still take without swapping:
// what the system has available, or what is left of the limit of one of the
// process's control groups. 0: not known.
func freeMemory() int64 {
	free := field("/proc/meminfo", "MemAvailable")
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return free
	}
	// Version 2 only: its line is "0::/path".
	_, group, ok := strings.Cut(string(groups), "0::/")
	if !ok {
		return free
	}
	group, _, _ = strings.Cut(group, "\n")
	for dir := path.Join("/sys/fs/cgroup", group); strings.HasPrefix(dir, "/sys/fs/cgroup"); dir = path.Dir(dir) {
		limit, used := number(dir+"/memory.max"), number(dir+"/memory.current")
		if limit > 0 && used >= 0 {
			free = min(free, max(1, limit-used))
		}
	}
	return free
}

// number returns the number that a file holds, -1 if it holds none.
func number(file string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// privateMemory returns the resident bytes that are not pages of files.
func privateMemory() int64 { return field("/proc/self/status", "RssAnon") }

// resetPeak lets peakMemory, the largest resident size, start again from now.
// It reports whether the system did so.
func resetPeak() bool { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) == nil }

func peakMemory() int64 { return field("/proc/self/status", "VmHWM") }

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
