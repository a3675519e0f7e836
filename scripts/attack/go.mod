// A module of its own, so that nobody who uses the library downloads it.
module github.com/lukv/lukv/scripts/attack

go 1.26.0
