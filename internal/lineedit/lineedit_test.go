package lineedit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// screen is an 80-column terminal that shows one row.
type screen struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

func TestReadLine(t *testing.T) {
	const up, down, left, right, home, end, del = "\x1b[A", "\x1bOB", "\x1b[D", "\x1bOC", "\x1b[H", "\x1b[4~", "\x1b[3~"
	for _, tc := range []struct {
		name, typed, want string
		err               error
	}{
		{"plain", "hello\r", "hello", nil},
		{"utf-8", "grüße 世界 e\u0301\r", "grüße 世界 e\u0301", nil},
		{"cursor", "ac" + left + "b" + right + "d\r", "abcd", nil},
		{"ends", "bc" + home + "a" + end + "d" + "\x01" + "0" + "\x05" + "9\r", "0abcd9", nil},
		{"beyond the ends", left + left + "a" + right + right + "b\r", "ab", nil},
		{"backspace", "abx\x7fc\b\b\b\b\bz\r", "z", nil},
		{"delete", "abc" + home + del + "\x04\r", "c", nil},
		{"words", "one two three\x17\x17" + "2\r", "one 2", nil},
		{"word moves", "one two\x1bb" + "x\x1b[1;5D\x1b[1;5D" + "y\x1bfz\r", "yonez xtwo", nil},
		{"word forward", "one two" + home + "\x1bd\r", " two", nil},
		{"kill", "abcdef" + left + left + "\x0b" + left + "\x15\r", "d", nil},
		{"history", up + up + "!\r", "first!", nil},
		{"history ends", up + up + up + up + down + "!\r", "second!", nil},
		{"own line is kept", "mine" + up + down + "!\r", "mine!", nil},
		{"unknown sequence", "a\x1b[99;99Qb\x1b[15~c\x00\x02\x06\r", "abc", nil},
		{"paste", "a\x1b[200~x\r\ny\rz\x03\x1b[201~b\r", "ax\ny\nz\x03b", nil},
		{"interrupt", "abc\x03", "abc", ErrInterrupt},
		{"end", "\x04", "", io.EOF},
		{"input ends", "abc", "", io.EOF},
		{"rows before history", "\x1b[200~ab\ncd\x1b[201~" + up + "x" + down + "y" + up + up + "!\r", "second!", nil},
		{"search", "\x12fir\r", "first", nil},
		{"search on", "\x12s\x12\x7fs\x12\x1b[D!\r", "firs!t", nil},
		{"search given up", "own\x12fir\x07!\r", "own!", nil},
		{"search without end", "own\x12zzz\x05!\r", "own!", nil},
		{"tab", "/sa\t.\r", "/save .", nil},
		{"tab, common", "/s\t\t\t.\r", "/s.", nil},
		{"tab, none", "x\t.\r", "x.", nil},
		{"invalid", "a\xffb\r", "a\uFFFDb", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s screen
			term := newTerminal(strings.NewReader(tc.typed), &s, func() int { return 80 })
			term.Complete = func(text string) (int, []string) {
				var out []string
				for _, c := range []string{"/save ", "/set "} {
					if strings.HasPrefix(c, text) {
						out = append(out, c)
					}
				}
				return 0, out
			}
			require.NoError(t, term.History.Add("first"))
			require.NoError(t, term.History.Add("second"))
			require.NoError(t, term.History.Add("second"))
			got, err := term.ReadLine(t.Context(), "> ")
			assert.Equal(t, tc.want, got)
			assert.ErrorIs(t, err, tc.err)
			assert.True(t, strings.HasSuffix(s.String(), "\r\n"))
		})
	}
}

// TestDraw checks what the row shows after the last key.
func TestDraw(t *testing.T) {
	for _, tc := range []struct {
		columns     int
		typed, want string
	}{
		{80, "abc", "\r> abc\x1b[K"},
		{80, "abc\x1b[D", "\r> abc\x1b[K\x1b[1D"},
		{80, "a\x1b[200~\n\t\x07\x1b[201~", "\r> a\x1b[K\r\n\r.  ·\x1b[K\x1b[J"},
		{80, "\x1b[200~ab\ncd\nef\x1b[201~\x1b[A\x1b[D", "\r. ef\x1b[K\x1b[J\x1b[1A\r\x1b[3C"},
		{8, "\x1b[200~abcdefgh\ncd\x1b[201~", "\r> abcde\x1b[K\r\n\r. cd\x1b[K\x1b[J"},
		{10, "abcdefghij", "\r> efghij\x1b[K"}, // 7 columns, one of them the cursor's
		{10, "abcdefghij\x01", "\r> abcdefg\x1b[K\x1b[7D"},
		{10, "世界世界", "\r> 界世界\x1b[K"},
		{0, "abc", "\r> abc\x1b[K"},
		{3, "abcdef", "\r> def\x1b[K"},
	} {
		var s screen
		r, w := io.Pipe()
		term := newTerminal(r, &s, func() int { return tc.columns })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { term.ReadLine(ctx, "> "); close(done) }()
		w.Write([]byte(tc.typed))
		ok := assert.Eventually(t, func() bool { return strings.HasSuffix(s.String(), tc.want) }, 5*time.Second, time.Millisecond, "%d columns, %q", tc.columns, tc.typed)
		if !ok {
			t.Logf("got %q", s.String())
		}
		cancel()
		<-done
		w.Close()
	}
}

func TestInterruptible(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	var s screen
	term := newTerminal(r, &s, func() int { return 80 })
	busy, stop := term.Interruptible(t.Context())
	w.Write([]byte("dropped\x03kept\r"))
	<-busy.Done()
	assert.ErrorIs(t, context.Cause(busy), ErrInterrupt)
	stop()
	got, err := term.ReadLine(t.Context(), "")
	require.NoError(t, err)
	assert.Equal(t, "kept", got)

	// When idle, Ctrl-C is a key, and a done context ends the wait.
	w.Write([]byte("\x03"))
	_, err = term.ReadLine(t.Context(), "")
	require.ErrorIs(t, err, ErrInterrupt)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("over")
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	_, err = term.ReadLine(ctx, "")
	require.ErrorIs(t, err, cause)
}

func TestHistoryFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "history")
	var h History
	require.NoError(t, h.Open(path))
	require.NoError(t, h.Add("one"))
	require.NoError(t, h.Add("two\nlines \"quoted\""))
	require.NoError(t, h.Add("  "))
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	f.WriteString("damaged\n")
	f.Close()
	var again History
	require.NoError(t, again.Open(path))
	assert.Equal(t, []string{"one", "two\nlines \"quoted\""}, again.Lines())
	for range 700 {
		require.NoError(t, again.Add("a"))
		require.NoError(t, again.Add("b"))
	}
	var short History
	require.NoError(t, short.Open(path))
	require.Len(t, short.Lines(), maxHistory)
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, maxHistory, bytes.Count(data, []byte("\n")))
}

// FuzzReadLine types arbitrary bytes: every line is valid UTF-8, and reading ends.
func FuzzReadLine(f *testing.F) {
	f.Add([]byte("abc\x1b[D\x7f\r"), 80)
	f.Add([]byte("\x1b[200~a\nb\x1b[201~\x17\x0b\x15\x1bb\x1bf\x1bd\r"), 10)
	f.Add([]byte("世界\x01\x04\x05\xff\x1b[1;5C\x1b[A\x1b[B\x0c"), 3)
	f.Fuzz(func(t *testing.T, typed []byte, columns int) {
		defer testfuzz.Bound(t, len(typed))()
		if len(typed) > 200 {
			return
		}
		term := newTerminal(bytes.NewReader(typed), io.Discard, func() int { return columns })
		for {
			line, err := term.ReadLine(t.Context(), "> ")
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil && !errors.Is(err, ErrInterrupt) {
				t.Fatal(err)
			}
			if !utf8.ValidString(line) {
				t.Errorf("%q is not UTF-8", line)
			}
			term.History.Add(line)
		}
	})
}
