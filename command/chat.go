package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/lineedit"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

type chatCmd struct {
	modelFlags
	verifyFlag

	System    string `short:"s" placeholder:"TEXT" help:"Set the system prompt."`
	Load      string `short:"l" placeholder:"FILE" help:"Start with a document as context, or with a saved chat."`
	KeepTurns int    `placeholder:"N" help:"Compress turns older than the last N, with the same --ratio and --metric (default 0: keep all turns)."`
	Raw       bool   `help:"Do not apply the chat template: send messages unchanged, one per line."`
	Stats     bool   `help:"Print tokens and times after each answer on standard error."`
	NoHistory bool   `help:"Do not save the input history to a file."`

	policyFlags
	exactFlags
	samplingFlags
}

func (chatCmd) Help() string {
	return `On a terminal: type a message and read the answer. Ctrl-C stops the answer or clears the current line; twice on an empty line, it quits like Ctrl-D. Tab completes commands and file names; Ctrl-R searches the input history. A line that ends in a backslash continues on the next line; text between """ and """ may have several lines. /help lists the commands. If standard input is not a terminal, the whole input is one message.

A document given with --load or /load precedes the first message and is compressed by --ratio, --metric and --allocator before any question is known; the system prompt stays as it is. The conversation itself is not compressed, unless --keep-turns or --decode asks for it: with --keep-turns 3 a question and its answer are compressed once three newer ones follow them.

Input history is kept in lukv/history in the user's cache folder.

Examples:

  lukv chat builtin

  lukv chat DIR --load book.txt --ratio 0.8

  lukv chat DIR --system "You are a patient teacher." --ratio 0.7 --keep-turns 3

  lukv chat Qwen/Qwen2.5-0.5B-Instruct --system "Answer briefly." < question.txt`
}

// chatter is one execution of chat.
type chatter struct {
	*chatCmd
	e    *env               // out and err are the terminal's if there is one
	term *lineedit.Terminal // nil: no terminal
	m    *model.Model
	conv *dialog.Conversation
	busy context.Context // of the work in progress

	draft   string // initial text of the next line
	editing bool   // the next line replaces the last message

	noted bool // the user knows that the template omits the system prompt
}

// isSession reports whether a file begins like a saved session, a safetensors file.
func isSession(head []byte) bool { return len(head) > 8 && head[8] == '{' && head[7] == 0 }

func (c *chatCmd) Run(e *env) error {
	if head, err := readHead(c.Load); err == nil && isSession(head) {
		if err := e.given.unused(budgetFlags+" system", c.Load+" "+keepsOwn); err != nil {
			return err
		}
	}
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.verify(e, m); err != nil {
		return err
	}
	r := &chatter{chatCmd: c, e: e, m: m, busy: e.ctx}
	if err := r.begin(); err != nil {
		return err
	}
	defer r.conv.Close()
	e.noteSeed(r.conv.Sampling)
	if isTerminal(e.in) && isTerminal(e.out) {
		return r.interactive()
	}
	return r.piped()
}

// begin creates the conversation. Settings that cannot work are refused before
// anything is typed.
func (r *chatter) begin() error {
	format, err := dialog.NewFormat(r.m, time.Now())
	if r.Raw {
		format, err = dialog.PlainFormat(r.m)
	}
	if err != nil {
		return err
	}
	r.conv = dialog.NewConversation(r.m, format)
	r.conv.System = r.System
	return r.apply()
}

// apply passes the settings to the conversation, or returns why it cannot.
func (r *chatter) apply() error {
	sampling, err := r.sampling(r.m)
	if err != nil {
		return err
	}
	policy, err := r.compression(r.m)
	if err != nil {
		return err
	}
	if err := r.checkTurns(policy); err != nil {
		return err
	}
	if err := r.exactFlags.check(policy); err != nil {
		return err
	}
	r.conv.Sampling, r.conv.Stop, r.conv.KeepTurns = sampling, r.Stop, r.KeepTurns
	r.conv.Session = r.session()
	r.conv.Session.Compression = policy
	r.conv.MaxLoss, r.conv.MeasureLoss = r.MaxLoss, r.MeasureLoss
	r.conv.Exact, r.conv.Drafts = r.Exact, r.drafts()
	return nil
}

// checkTurns returns an error if a policy cannot compress older turns.
func (r *chatter) checkTurns(policy *lukv.Policy) error {
	switch {
	case r.KeepTurns < 0:
		return usage("--keep-turns: found %d, expected 0 or more", r.KeepTurns)
	case r.KeepTurns == 0 || policy == nil:
		return nil
	}
	turns := *policy
	turns.Decode = lukv.DecodeConfig{}
	_, err := r.m.CacheEstimate(model.SessionOptions{Compression: &turns}, model.Lengths{Before: 1, Context: 1024})
	if err != nil {
		return usage("--keep-turns: this policy compresses no later part of a context: %v", err)
	}
	return nil
}

// limit returns the number of tokens that fit into the context.
func (r *chatter) limit() int {
	if n := r.MaxContext; n > 0 {
		return n
	}
	return r.m.Config().MaxPositions
}

// piped answers standard input as one message.
func (r *chatter) piped() error {
	data, err := r.e.readText("-")
	if err != nil {
		return err
	}
	text := strings.TrimRight(strings.ToValidUTF8(string(data), "\uFFFD"), "\r\n")
	if strings.TrimSpace(text) == "" {
		return usage("standard input is empty: expected a message")
	}
	if r.Load == "" {
		if err := r.e.given.unused(budgetFlags+" keep-turns", "standard input is not a terminal, so it is one message and nothing is old enough to be compressed without --load"); err != nil {
			return err
		}
	} else if err := r.load(r.Load); err != nil {
		return err
	}
	return r.ask(text)
}

// interactive talks on a terminal until the user leaves.
func (r *chatter) interactive() error {
	in, okIn := r.e.in.(interface {
		io.Reader
		lineedit.Device
	})
	out, okOut := raw(r.e.out).(interface {
		io.Writer
		lineedit.Device
	})
	if !okIn || !okOut {
		return errors.New("chat: standard input or output is not a terminal")
	}
	term, err := lineedit.Open(in, out)
	if err != nil {
		return fmt.Errorf("chat: %w", err)
	}
	defer term.Close()
	// From here on all output needs the terminal's line breaks.
	e := *r.e
	e.out = &screen{w: term}
	if isTerminal(e.err) {
		e.err = &screen{w: term}
	}
	r.e, r.term = &e, term
	term.Complete = complete
	if !r.NoHistory {
		if dir, err := os.UserCacheDir(); err == nil {
			r.warn(term.History.Open(filepath.Join(dir, "lukv", "history")))
		}
	}
	r.e.note("%s, %d tokens of context. /help lists the commands, /bye leaves.", r.Model, r.limit())
	if r.Load != "" {
		r.interruptible(func() error { return r.load(r.Load) })
	}
	for interrupts := 0; ; {
		text, err := r.read()
		switch {
		case errors.Is(err, lineedit.ErrInterrupt) && text != "":
			interrupts, r.editing = 0, false // it discarded the line
			continue
		case errors.Is(err, lineedit.ErrInterrupt):
			if interrupts++; interrupts == 2 {
				return nil
			}
			fmt.Fprintln(r.e.out, "(Ctrl-C again, Ctrl-D or /bye leaves)")
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		interrupts = 0
		editing := r.editing
		r.editing = false
		if strings.TrimSpace(text) == "" {
			continue
		}
		r.warn(term.History.Add(text))
		leave := false
		r.interruptible(func() (err error) {
			if line, ok := strings.CutPrefix(text, "/"); ok && !strings.Contains(text, "\n") {
				leave, err = r.command(line)
				return err
			}
			if editing {
				return r.again(text)
			}
			return r.ask(text)
		})
		if leave {
			return nil
		}
		if r.e.ctx.Err() != nil {
			return context.Cause(r.e.ctx)
		}
	}
}

// interruptible calls do, which Ctrl-C cancels, and prints its error.
func (r *chatter) interruptible(do func() error) {
	busy, stop := r.term.Interruptible(r.e.ctx)
	r.busy = busy
	err := do()
	interrupted := errors.Is(context.Cause(busy), lineedit.ErrInterrupt)
	stop()
	r.busy = r.e.ctx
	switch {
	case interrupted && err != nil:
		fmt.Fprintln(r.e.out, "(interrupted)")
	case r.e.ctx.Err() != nil: // reported when the command ends
	default:
		r.warn(err)
	}
}

// warn prints an error, if there is one.
func (r *chatter) warn(err error) {
	if err != nil {
		fmt.Fprintf(r.e.err, "%s\n", oneLine(err))
	}
}

const (
	chatPrompt = ">>> "
	morePrompt = "... "
	quotes     = `"""`
)

// read reads a message, which may have several lines. If it is interrupted, it
// returns what it has read so far.
func (r *chatter) read() (string, error) {
	draft := r.draft
	r.draft = ""
	line, err := r.term.EditLine(r.e.ctx, chatPrompt, draft)
	if err != nil {
		return line, err
	}
	if draft != "" {
		return line, nil // line breaks are in it already
	}
	var b strings.Builder
	if rest, ok := strings.CutPrefix(strings.TrimLeft(line, " "), quotes); ok {
		for {
			if text, end := strings.CutSuffix(strings.TrimRight(rest, " "), quotes); end {
				b.WriteString(text)
				return strings.Trim(b.String(), "\n"), nil
			}
			b.WriteString(rest + "\n")
			if rest, err = r.term.ReadLine(r.e.ctx, morePrompt); err != nil {
				return b.String(), err
			}
		}
	}
	for {
		text, more := strings.CutSuffix(line, `\`)
		b.WriteString(text)
		if !more {
			return b.String(), nil
		}
		b.WriteString("\n")
		if line, err = r.term.ReadLine(r.e.ctx, morePrompt); err != nil {
			return b.String(), err
		}
	}
}

// ask sends a message to the model and prints the answer as it arrives.
func (r *chatter) ask(text string) error {
	p := r.reading()
	defer p.clear()
	var wrap wordWrap
	if r.term != nil {
		wrap.columns = r.term.Columns()
	}
	turn, err := r.conv.Ask(r.busy, text, func(text string) error {
		p.clear()
		_, err := io.WriteString(r.e.out, wrap.add(text))
		return err
	})
	p.clear()
	if _, e := io.WriteString(r.e.out, wrap.end()); err == nil {
		err = e
	}
	if turn.Held > 0 {
		if _, e := fmt.Fprintln(r.e.out); err == nil {
			err = e
		}
	}
	if errors.Is(err, model.ErrContextFull) {
		err = fmt.Errorf("%w%s", err, r.advice())
	}
	if turn.NoSystem && !r.noted {
		r.noted = true
		r.e.note("the model's chat template leaves the system prompt out")
	}
	if r.term == nil && err != nil {
		return err
	}
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, lineedit.ErrInterrupt) {
		return err
	}
	if r.Stats {
		writeTurn(r.e.err, turn)
	}
	return err
}

// advice returns suggestions for a full context, only those that apply.
func (r *chatter) advice() string {
	var ways []string
	if r.term == nil {
		if r.Load == "" {
			ways = append(ways, "give a long text with --load FILE --ratio R, which compresses it")
		}
	} else {
		if len(r.conv.Messages) > 0 {
			ways = append(ways, "/clear forgets the conversation")
		}
		if r.conv.Document == "" {
			ways = append(ways, "a long text can be compressed: /set ratio R, then /load FILE")
		} else {
			ways = append(ways, "/set ratio R compresses the document more")
		}
	}
	if r.MaxContext > 0 && r.MaxContext < r.m.Config().MaxPositions {
		ways = append(ways, fmt.Sprintf("the model allows a --max-context of %d", r.m.Config().MaxPositions))
	}
	if len(ways) == 0 {
		return ""
	}
	return " (" + strings.Join(ways, "; ") + ")"
}

// reading returns a progress line that shows how much of a prompt has been read.
func (r *chatter) reading() *progress {
	p := r.e.longProgress()
	r.conv.Progress = p.tokens("reading", 1)
	return p
}

func writeTurn(w io.Writer, t dialog.Turn) {
	rate := func(n int, d time.Duration) float64 { return float64(n) / max(d.Seconds(), 1e-9) }
	fmt.Fprintf(w, "read %d of %d tokens in %s (%.0f tokens/s), answered %d in %s (%.1f tokens/s)\n",
		t.Read, t.Held, since(ms(t.ReadTime)), rate(t.Read, t.ReadTime), t.New, since(ms(t.AnswerTime)), rate(t.New, t.AnswerTime))
}

// load loads a document or a saved chat into the context.
func (r *chatter) load(path string) error {
	head, err := readHead(path)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	p := r.reading()
	defer p.clear()
	if isSession(head) {
		err = r.restore(path)
	} else {
		err = r.document(path)
	}
	if err != nil {
		return err
	}
	p.clear()
	r.e.advise(r.conv.Held())
	r.e.adviseLoss(r.conv.Held(), r.conv.Loss, r.MaxLoss != nil)
	if r.term != nil {
		r.describe()
	}
	return nil
}

const keepsOwn = "is a saved context, which keeps its own compression and system prompt"

// restore resumes a saved chat. Its compression and system prompt cannot be changed:
// flags that ask for others are an error, settings made in the chat only give a note.
func (r *chatter) restore(path string) error {
	if p := r.conv.Session.Compression; p != nil && budgeted(p) || r.conv.System != "" {
		r.e.note("note: %s "+keepsOwn, path)
	}
	if err := r.conv.Restore(r.busy, path, r.conv.Session); err != nil {
		return err
	}
	r.loaded(r.e, path)
	return nil
}

// document puts the text of a file in front of a new conversation.
func (r *chatter) document(path string) error {
	data, err := inputfile.Read(path, maxInput)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := r.e.checkText(path, data); err != nil {
		return err
	}
	if err := r.conv.ReadDocument(r.busy, string(unmarked(data))); err != nil {
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}
