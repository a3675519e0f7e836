//go:build !purego

package probe

import "unsafe"

func allReaders() map[string]func(unsafe.Pointer, int) {
	m := map[string]func(unsafe.Pointer, int){"sse": readSSE}
	if haveAVX2 {
		m["avx2 pairs"] = pairsAVX2
		m["avx2"], m["avx2 streams"], m["avx2 near"], m["avx2 lines"] = readAVX2, streamsAVX2, nearAVX2, linesAVX2
	}
	if haveAVX512 {
		m["avx512 pairs"] = pairsAVX512
		m["avx512"], m["avx512 streams"], m["avx512 near"], m["avx512 lines"] = readAVX512, streamsAVX512, nearAVX512, linesAVX512
	}
	return m
}
