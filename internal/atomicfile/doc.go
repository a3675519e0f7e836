// Package atomicfile writes files that appear under their name only when they
// are complete and on disk. If the name is a link, its target is replaced and the
// link stays; a device or a pipe is written to, never replaced.
//
// On systems that have files without a name (Linux), a program that is killed
// leaves nothing behind, except in the moment of a rename; what is left then, and
// on other systems, is removed by the next [Write] to the same name.
package atomicfile
