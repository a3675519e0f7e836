//go:build unix

package model

import (
	"io/fs"
	"syscall"
)

// inode is the number of a file in its file system, which another file of the same
// name does not have; 0 where there is none.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
