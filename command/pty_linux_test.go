package command

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// pty is the command with a pseudo-terminal for its three streams.
type pty struct {
	t    *testing.T
	keys *os.File // the terminal's other end
	code chan int

	mu   sync.Mutex
	seen []byte
	at   int // how much of seen expect has consumed
}

func startPTY(t *testing.T, args ...string) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}))
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	before, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	require.NoError(t, err)

	p := &pty{t: t, keys: master, code: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			p.mu.Lock()
			p.seen = append(p.seen, buf[:n]...)
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.code <- run(ctx, args, tty, tty, tty)
		after, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if assert.NoError(t, err) {
			assert.Equal(t, before, after, "the terminal's mode afterwards")
		}
		tty.Close()
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		master.Close()
	})
	return p
}

func (p *pty) press(keys string) {
	p.t.Helper()
	_, err := p.keys.WriteString(keys)
	require.NoError(p.t, err)
}

// expect waits for a match in what follows the previous match, and returns its groups.
func (p *pty) expect(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		p.mu.Lock()
		rest := p.seen[p.at:]
		m := re.FindSubmatchIndex(rest)
		var groups []string
		if m != nil {
			for i := 0; i < len(m); i += 2 {
				groups = append(groups, string(rest[m[i]:m[i+1]]))
			}
			p.at += m[1]
		}
		p.mu.Unlock()
		if m != nil {
			return groups
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	require.FailNow(p.t, "not seen", "expected %q behind %q in\n%q", pattern, p.seen[:p.at], p.seen[p.at:])
	return nil
}

// say types a line, waits for the prompt after its answer, and returns the answer.
func (p *pty) say(line string) string {
	p.t.Helper()
	p.press(line + "\r")
	// The line is redrawn with each key, the last time with its line break.
	p.expect(regexp.QuoteMeta(">>> "+line) + `\x1b\[K\r\n`)
	got := p.expect(`(?s)^(.*?)\r>>> \x1b\[K`)
	// Drop the remains of a progress line.
	return regexp.MustCompile(`[^\n]*\r`).ReplaceAllString(strings.ReplaceAll(got[1], "\r\n", "\n"), "")
}

func (p *pty) exit(code int) {
	p.t.Helper()
	select {
	case got := <-p.code:
		assert.Equal(p.t, code, got, "exit status")
	case <-time.After(30 * time.Second):
		require.FailNow(p.t, "the program does not end")
	}
}

// TestChatTerminal is a whole session on a terminal with the embedded model.
func TestChatTerminal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	sample := chatSample(t)
	document := filepath.Join(dir, "document.txt")
	require.NoError(t, os.WriteFile(document, []byte(sample.Context), 0o600))
	saved := filepath.Join(dir, "saved.session")

	p := startPTY(t, "chat", builtin.Name, "--stats", "--threads", "2")
	p.expect(`2048 tokens of context`)
	p.expect(`>>> `)

	// A question; an editing key on the way.
	p.press("Whom do you knox\x7fw?\r")
	p.expect(`>>> Whom do you know\?\x1b\[K\r\n`)
	p.expect(`(?s)(.+)\r\nread \d+ of \d+ tokens.*>>> `)
	assert.Contains(t, p.say("/kv"), "tokens  ")
	assert.Contains(t, p.say("/show"), "messages            2\n")
	assert.Contains(t, p.say("/nonsense"), "no such command")
	assert.Contains(t, p.say("/set nonsense 3"), "expected one of system, temperature")
	assert.Contains(t, p.say("/set ratio 1.5"), "ratio")
	assert.Contains(t, p.say("/set top-p x"), "expected a number")
	assert.Contains(t, p.say("/load "+dir+"/nothing"), "no such file")
	assert.Contains(t, p.say("/help"), "/bye")

	// A document, compressed; a question about it.
	assert.Empty(t, p.say("/set metric snapkv"))
	assert.Empty(t, p.say("/set ratio 0.3"))
	assert.Regexp(t, `\d+ tokens read, .* instead of .* \((29|30)\.\d % of the entries removed\)`, p.say("/load "+document))
	kv := p.say("/kv")
	assert.Regexp(t, `ratio +(29|30)\.\d\d % removed`, kv)
	assert.Regexp(t, `layer 5 +\d+ \d+ \d+ \d+\n`, kv)
	answer := p.say(sample.Question)
	for _, want := range sample.Answers {
		assert.Contains(t, answer, want)
	}
	assert.Contains(t, p.say("/kv"), `"ratio":0.3,"rounding":{"share":`, "the policy in force")
	assert.Contains(t, p.say("/save "+saved), "saved ")
	assert.Contains(t, p.say("/clear"), "")
	assert.Contains(t, p.say("/show"), "messages            0\n")
	cleared := p.say("/kv")
	held := regexp.MustCompile(`, at the peak .*`)
	assert.Equal(t, held.ReplaceAllString(kv, ""), held.ReplaceAllString(cleared, ""), "after /clear the cache holds the document again")
	assert.Equal(t, answerText(answer), answerText(p.say(sample.Question)), "the same question again")

	assert.Empty(t, p.say("/clear all"))
	assert.Contains(t, p.say("/kv"), "the cache is empty")
	assert.Contains(t, p.say("/load "+saved), "tokens read")
	messages := p.say("/show messages")
	assert.Contains(t, messages, "assistant: "+answerText(answer))
	again := p.say(sample.Question)
	var read, whole int
	_, err := fmt.Sscanf(again[strings.LastIndex(again, "read "):], "read %d of %d", &read, &whole)
	require.NoError(t, err)
	assert.Less(t, read, 60, "only what is new is read after /load, of %d tokens", whole)

	// Ctrl-C stops an answer that would go on for long, not the program.
	p.say("/clear all")
	p.say("/set temperature 60")
	p.say("/set max-tokens 1900")
	p.say("/set seed 3")
	p.press("Talk!\r")
	p.expect(`Talk!\x1b\[K\r\n`)
	p.expect(`(?s).{80}`)
	p.press("never mind\x03")
	p.expect(`\(interrupted\)`)
	p.expect(`>>> \x1b\[K`)
	p.say("/set temperature 0")
	p.say("/set max-tokens 20")
	assert.Regexp(t, `read \d+ of \d+ tokens`, p.say("And now?"))

	// Several lines.
	p.press("\"\"\"one\r")
	p.expect(`one\x1b\[K\r\n`)
	p.press("two\"\"\"\r")
	p.expect(`(?s)read \d+.*>>> \x1b\[K`)
	p.press("three\\\r")
	p.expect(`\.\.\. `)
	p.press("four\r")
	p.expect(`(?s)read \d+.*>>> \x1b\[K`)
	messages = p.say("/show messages")
	assert.Contains(t, messages, "user: one\ntwo\n")
	assert.Contains(t, messages, "user: three\nfour\n")

	// History: the second entry up.
	p.press("\x1b[A\x1b[A")
	p.expect(`>>> three\x1b\[K\r\n\r\.\.\. four`)
	// Ctrl-C discards a line that was begun, however often, and does not leave.
	for _, line := range []string{"", "abc", "def", "\"\"\"ghi\r"} {
		p.press(line + "\x03")
		p.expect(`(?s)\r\n\r>>> \x1b\[K`)
	}
	// Tab and Ctrl-R.
	p.press("/sh\t mes\t\r")
	p.expect(`user: three\r\nfour\r\n`)
	p.press("\x12Tal")
	p.expect(`search "Tal": Talk!`)
	p.press("\x03")

	// The last message: another answer, another question, the clipboard.
	p.say("/set temperature 0")
	assert.Contains(t, p.say("/retry"), "/set temperature 0.7 draws")
	p.say("/set temperature 2")
	p.say("/retry")
	assert.Contains(t, p.say("/show"), "messages            8\n")
	p.press("/edit\r")
	p.expect(`>>> three\x1b\[K\r\n\r\.\.\. four`)
	p.press(" and five\r")
	p.expect(`(?s)read \d+.*>>> `)
	messages = p.say("/show messages")
	assert.Contains(t, messages, "user: three\nfour and five\n")
	assert.NotContains(t, messages, "four\n")
	p.press("/copy\r")
	p.expect(`\x1b\]52;c;[A-Za-z0-9+/=]*\x07`)
	p.expect(`>>> `)

	// Two Ctrl-C in empty lines leave; here one is not enough.
	p.press("\x03")
	p.expect(`Ctrl-C again`)
	p.press("/bye\r")
	p.exit(exitOK)
	history, err := os.ReadFile(filepath.Join(dir, "lukv", "history"))
	require.NoError(t, err)
	assert.Contains(t, string(history), `"Talk!"`)
}

func answerText(shown string) string {
	text, _, _ := strings.Cut(shown, "\n")
	return text
}

// TestChatLeaves tries the ways out.
func TestChatLeaves(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, keys := range map[string]string{"ctrl-d": "\x04", "ctrl-c twice": "\x03\x03", "quit": "/quit\r"} {
		t.Run(name, func(t *testing.T) {
			p := startPTY(t, "chat", builtin.Name, "--no-history")
			p.expect(`>>> `)
			p.press(keys)
			p.exit(exitOK)
		})
	}
}

// TestTerminalShowsControls: every command makes control characters in text from
// outside visible on a terminal, and writes them to a pipe as they are.
func TestTerminalShowsControls(t *testing.T) {
	dir := t.TempDir()
	weights := filepath.Join(dir, "weights.safetensors")
	require.NoError(t, safetensors.WriteFile(weights, []safetensors.Named{
		{Name: "w\x1b[2J", Tensor: tensor.Tensor{Type: tensor.F32, Shape: []int{1}, Data: make([]byte, 4)}},
	}, nil))
	template := []string{"template", builtin.Name, "--user", "a\x1b[31mb"}
	for _, c := range []struct {
		args []string
		want string
		code int
	}{
		{template, `a␛\[31mb`, exitOK},
		{[]string{"inspect", weights}, `w␛\[2J`, exitOK},
		{[]string{"inspect", filepath.Join(dir, "x\x1b]0;y\x07")}, `x␛\]0;y␇`, exitFailed},
		{[]string{"tokenize", builtin.Name, "--decode", "5"}, `.`, exitOK},
	} {
		p := startPTY(t, c.args...)
		p.expect(c.want)
		p.exit(c.code)
	}
	assert.Contains(t, ok(t, template...), "a\x1b[31mb", "not a terminal")
}
