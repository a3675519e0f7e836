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
	require.EqualError(t, err, `instruction set "sse": expected auto, portable, avx2, avx512, avx512vnni, avx512bf16, neon or dotprod`)

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

func TestDetectStreaming(t *testing.T) {
	for _, c := range []struct {
		intel bool
		l1    int
		name  string
		want  Streaming
		err   string
	}{
		{true, 48 << 10, "", streamRuns, ""},
		{true, 32 << 10, "", streamRuns, ""},
		{false, 48 << 10, "", streamNear, ""},
		{false, 32 << 10, "", streamFar, ""},
		{false, 0, "", streamNear, ""},
		{false, 32 << 10, "near", streamNear, ""},
		{false, 48 << 10, "far", streamFar, ""},
		{true, 48 << 10, "runs", streamRuns, ""},
		{false, 32 << 10, "fast", streamFar, `streaming "fast": expected near, far, runs`},
	} {
		got, err := detectStreaming(c.intel, c.l1, c.name)
		require.Equal(t, c.want, got, "%+v", c)
		if c.err == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, c.err)
		}
	}
}
