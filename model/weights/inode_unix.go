//go:build unix

package weights

import (
	"io/fs"
	"syscall"
)

// inode returns a file's inode number, which another file of the same name does not
// have; 0 if there is none.
func inode(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Ino)
	}
	return 0
}
