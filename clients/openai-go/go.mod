// The official Go client judges the server. A module of its own, so that nobody who
// uses the library downloads it.
module github.com/lukv/lukv/clients/openai-go

go 1.26.0

replace github.com/lukv/lukv => ../..

require (
	github.com/lukv/lukv v0.0.0-00010101000000-000000000000
	github.com/openai/openai-go/v3 v3.96.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/klauspost/cpuid/v2 v2.4.2 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)
