package sysmem

import (
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Total returns the machine's memory in bytes, 0 if unknown.
func Total() int64 { return max(0, field("/proc/meminfo", "MemTotal:")) << 10 }

// Available returns the bytes that the process may still take without swapping, 0 if
// unknown: the least of what the system has available and what the process's control
// groups have left of their limits. Pages of files count as available, since they can
// be read again.
func Available() int64 {
	free := max(0, field("/proc/meminfo", "MemAvailable:")) << 10
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return free
	}
	return availableIn("/sys/fs/cgroup", string(groups), free)
}

// hierarchy holds the names of a memory control group's files, and of the fields of
// its memory.stat that count pages of files.
type hierarchy struct {
	limit, used      string
	inactive, active string
}

var (
	version1 = hierarchy{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"}
	version2 = hierarchy{"memory.max", "memory.current", "inactive_file", "active_file"}
)

// availableIn reduces free to what is left of the limits of the control groups that
// groups, the text of a /proc/self/cgroup, names. mounted is the folder of the groups.
func availableIn(mounted, groups string, free int64) int64 {
	for line := range strings.Lines(groups) {
		// number:controllers:/path; version 2 is number 0 without controllers
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) < 3:
		case part[0] == "0" && part[1] == "":
			free = version2.available(mounted, part[2], free)
		case slices.Contains(strings.Split(part[1], ","), "memory"):
			free = version1.available(path.Join(mounted, "memory"), part[2], free)
		}
	}
	return free
}

// available reduces free for a group and those above it. If a group does not exist, as
// within a container that sees itself as the root, only those above it count.
func (h hierarchy) available(root, group string, free int64) int64 {
	for group = path.Join("/", group); ; group = path.Dir(group) {
		dir := path.Join(root, group)
		limit, used := number(path.Join(dir, h.limit)), number(path.Join(dir, h.used))
		if limit > 0 && used >= 0 {
			stat := path.Join(dir, "memory.stat")
			files := max(0, field(stat, h.inactive)) + max(0, field(stat, h.active))
			free = min(free, max(1, limit-used+files))
		}
		if group == "/" {
			return free
		}
	}
}

// field returns the number that follows name at the start of a line of a file, -1 if
// there is none.
func field(file, name string) int64 {
	data, err := os.ReadFile(file)
	if err != nil {
		return -1
	}
	for line := range strings.Lines(string(data)) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != name {
			continue
		}
		if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
			return n
		}
	}
	return -1
}

// number returns the number in a file, -1 if there is none.
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
