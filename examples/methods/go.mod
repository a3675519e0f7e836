// Methods of another module: a metric, a metric around a metric, an allocator and
// an allocator around an allocator, usable wherever the built-in ones are.
module github.com/lukv/lukv/examples/methods

go 1.26.0

require github.com/lukv/lukv v0.0.0

require (
	github.com/alecthomas/kong v1.17.0 // indirect
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/klauspost/cpuid/v2 v2.4.2 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/lukv/lukv => ../..
