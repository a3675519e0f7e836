//go:build !purego

package probe

import "unsafe"

func allReaders() map[string]func(unsafe.Pointer, int) {
	m := map[string]func(unsafe.Pointer, int){"sse": readSSE}
	if haveAVX2 {
		m["avx2"], m["avx2 streams"] = readAVX2, streamsAVX2
	}
	if haveAVX512 {
		m["avx512"], m["avx512 streams"] = readAVX512, streamsAVX512
	}
	return m
}
