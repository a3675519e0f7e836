//go:build !unix

package weights

import "io/fs"

// inode returns 0: these systems do not report it.
func inode(fs.FileInfo) uint64 { return 0 }
