// Package atomicfile writes files that appear under their name only when they
// are complete and on disk.
package atomicfile
