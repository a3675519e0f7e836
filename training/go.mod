// How the embedded model was trained: Python and C++, no Go. A module of its own,
// so that nobody who uses the library downloads it.
module github.com/lukv/lukv/training

go 1.26.0
