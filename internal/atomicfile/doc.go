// Package atomicfile writes files that appear under their name only when they
// are complete and on disk. Where the name is a link, the file behind it is
// replaced and the link stays; a device or a pipe is written to, never replaced.
//
// A program that is killed leaves nothing behind where the system has files
// without a name (Linux), but for the moment of a rename; what is left there and
// elsewhere is removed by the next [Write] to the same name.
package atomicfile
