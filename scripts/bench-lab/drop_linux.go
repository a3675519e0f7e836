package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropPages makes the system drop the cached pages of a folder's files, and reports
// whether it did: whether less than a hundredth of them is in memory afterwards.
func dropPages(dir string) bool {
	list, err := files(dir)
	if err != nil {
		return false
	}
	var pages, resident int
	for _, path := range list {
		n, in, err := dropFile(path)
		if err != nil {
			return false
		}
		pages, resident = pages+n, resident+in
	}
	return resident*100 < pages
}

// dropFile is dropPages for one file. It returns the number of its pages and of those
// that stayed in memory.
func dropFile(path string) (pages, resident int, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return 0, 0, err
	}
	// Pages not yet on disk would stay.
	if err := f.Sync(); err != nil {
		return 0, 0, err
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return 0, 0, err
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Munmap(data)
	in := make([]byte, (len(data)+os.Getpagesize()-1)/os.Getpagesize())
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&data[0])), uintptr(len(data)), uintptr(unsafe.Pointer(&in[0]))); errno != 0 {
		return 0, 0, errno
	}
	for _, x := range in {
		resident += int(x & 1)
	}
	return len(in), resident, nil
}
