// A module of its own, so that users of the library do not download it. Since its path is
// below the library's, it may import the library's internal packages.
module github.com/lukv/lukv/scripts/bench-lab

go 1.26.0

require (
	github.com/lukv/lukv v0.0.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/ebitengine/purego v0.11.3 // indirect
	github.com/klauspost/cpuid/v2 v2.4.2 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/lukv/lukv => ../..
