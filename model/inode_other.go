//go:build !unix

package model

import "io/fs"

// inode is 0: these systems do not say.
func inode(fs.FileInfo) uint64 { return 0 }
