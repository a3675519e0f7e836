// Package filelock keeps two processes from writing one file: an advisory
// exclusive lock on an open file, where the operating system has one.
package filelock
