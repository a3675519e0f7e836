//go:build (linux || darwin) && (amd64 || arm64)

package vk

import (
	"runtime"

	"github.com/ebitengine/purego"
)

func libraryNames() []string {
	if runtime.GOOS == "darwin" {
		return []string{"libvulkan.1.dylib", "libvulkan.dylib", "/usr/local/lib/libvulkan.1.dylib", "/opt/homebrew/lib/libvulkan.1.dylib", "libMoltenVK.dylib"}
	}
	return []string{"libvulkan.so.1", "libvulkan.so"}
}

func openLibrary(name string) (uintptr, error) {
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func findSymbol(lib uintptr, name string) (uintptr, error) { return purego.Dlsym(lib, name) }
