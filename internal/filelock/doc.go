// Package filelock keeps two processes from writing the same file, by an advisory
// exclusive lock on an open file where the operating system has one.
package filelock
