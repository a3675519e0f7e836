//go:build !(amd64 || arm64) || purego

package workers

//go:noinline
func pause() {}
