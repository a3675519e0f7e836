// A small service on package engine, as a module of its own: what a user writes.
module github.com/lukv/lukv/examples/service

go 1.26.0

require github.com/lukv/lukv v0.0.0

require (
	github.com/klauspost/cpuid/v2 v2.4.2 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/lukv/lukv => ../..
