package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// events are the output of go test -json for a passing, a failing and three skipped
// tests, a package that does not build, and a test that never ends.
const events = `{"Action":"start","Package":"github.com/lukv/lukv/a"}
{"Action":"run","Package":"github.com/lukv/lukv/a","Test":"TestGood"}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestGood","Output":"    a_test.go:3: chatter\n"}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestGood","Output":"    a_test.go:4: golden things: 41 checks\n"}
{"Action":"pass","Package":"github.com/lukv/lukv/a","Test":"TestGood","Elapsed":0}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestBad","Output":"    a_test.go:5: want 1, got 2\n"}
{"Action":"fail","Package":"github.com/lukv/lukv/a","Test":"TestBad","Elapsed":0}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestArm","Output":"=== RUN   TestArm\n"}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestArm","Output":"    a_test.go:9: no emulator: qemu-aarch64\n"}
{"Action":"output","Package":"github.com/lukv/lukv/a","Test":"TestArm","Output":"--- SKIP: TestArm (0.00s)\n"}
{"Action":"skip","Package":"github.com/lukv/lukv/a","Test":"TestArm","Elapsed":0}
{"Action":"output","Package":"github.com/lukv/lukv/a","Output":"FAIL\n"}
{"Action":"output","Package":"github.com/lukv/lukv/a","Output":"FAIL\tgithub.com/lukv/lukv/a\t0.1s\n"}
{"Action":"fail","Package":"github.com/lukv/lukv/a","Elapsed":0.1}
{"ImportPath":"github.com/lukv/lukv/b","Action":"build-output","Output":"b/b.go:1:1: expected 'package'\n"}
not an event
{"Action":"output","Package":"github.com/lukv/lukv/c","Test":"TestArmToo","Output":"    sub/c_test.go:9: no emulator: qemu-aarch64\n"}
{"Action":"skip","Package":"github.com/lukv/lukv/c","Test":"TestArmToo","Elapsed":0}
{"Action":"skip","Package":"github.com/lukv/lukv/c","Test":"TestSilent","Elapsed":0}
{"Action":"output","Package":"github.com/lukv/lukv/c","Output":"?   \tgithub.com/lukv/lukv/d\t[no test files]\n"}
{"Action":"output","Package":"github.com/lukv/lukv/c","Test":"TestStuck","Output":"=== RUN   TestStuck\n"}
`

func TestSummary(t *testing.T) {
	var out bytes.Buffer
	s := newSummary(&out, false)
	require.NoError(t, s.read(strings.NewReader(events)))
	s.close()
	require.Equal(t, `    a_test.go:5: want 1, got 2
FAIL
FAIL	github.com/lukv/lukv/a	0.1s
b/b.go:1:1: expected 'package'
not an event
unfinished: TestStuck of github.com/lukv/lukv/c, which printed
=== RUN   TestStuck
checks: a: golden things: 41 checks
skipped: 3 tests, for 2 reasons
skipped:    2: no emulator: qemu-aarch64 (a, c)
skipped:    1: no reason given (c)
`, out.String())
}

func TestNothingSkipped(t *testing.T) {
	var out bytes.Buffer
	newSummary(&out, false).close()
	require.Equal(t, "skipped: nothing\n", out.String())
}
