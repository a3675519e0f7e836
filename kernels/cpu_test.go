package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseCPU(t *testing.T) {
	auto, err := ParseCPU("auto")
	require.NoError(t, err)
	require.Equal(t, detect(), auto)
	portable, err := ParseCPU("Portable")
	require.NoError(t, err)
	require.Equal(t, CPU{}, portable)
	_, err = ParseCPU("sse")
	require.EqualError(t, err, `instruction set "sse": want auto, portable, avx2, avx512, avx512bf16 or neon`)

	// No processor has both families.
	have := map[string]bool{}
	for _, c := range Variants() {
		again, err := ParseCPU(c.String())
		require.NoError(t, err)
		require.Equal(t, c, again)
		have[c.String()] = true
	}
	foreign := "neon"
	if have["neon"] {
		foreign = "avx2"
	}
	_, err = ParseCPU(foreign)
	require.ErrorContains(t, err, "this processor offers "+detect().String())
}

func TestDetectNamed(t *testing.T) {
	for _, c := range []struct {
		name string
		want CPU
		ok   bool
	}{
		{"", detect(), true},
		{"auto", detect(), true},
		{"portable", CPU{}, true},
		{"pentium", detect(), false},
	} {
		got, err := detectNamed(c.name)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.ok, err == nil, c.name)
	}
}
