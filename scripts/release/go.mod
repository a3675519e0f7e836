// A module of its own, so that nobody who uses the library downloads it.
module github.com/lukv/lukv/scripts/release

go 1.26.0
