//go:build !purego

package probe

import "unsafe"

func readers() map[string]func(unsafe.Pointer, int) {
	m := map[string]func(unsafe.Pointer, int){"sse": readSSE}
	if haveAVX2 {
		m["avx2"] = readAVX2
	}
	if haveAVX512 {
		m["avx512"] = readAVX512
	}
	return m
}
