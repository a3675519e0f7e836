package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// conversation is a chat and the session that holds as much of it as the model
// has read. The prompt of each turn is rendered anew from all messages; only what
// goes beyond the session's tokens is fed.
type conversation struct {
	m        *model.Model
	cmd      *chatCmd // settings
	tok      *tokenizer.Tokenizer
	template *chat.Template // nil: plain lines
	special  *chat.Object
	bos      string    // before plain lines
	begun    time.Time // what templates take for today, so that a prompt never changes at midnight

	chatState

	s *model.Session // nil: nothing read yet
	// head is the beginning of the prompt up to the end of the document, which the
	// session has read by itself, and compressed; its tokens are always headTokens,
	// whatever a tokenizer would make of it together with what follows.
	head       string
	headTokens []int32

	draw func(done, total int) // progress of the prefill under way
}

// chatState is what a saved chat has beside its session.
type chatState struct {
	System   string         `json:"system,omitempty"`
	Document string         `json:"document,omitempty"`
	Messages []*chat.Object `json:"messages"`
}

func newConversation(m *model.Model, cmd *chatCmd) (*conversation, error) {
	c := &conversation{m: m, cmd: cmd, begun: time.Now(), chatState: chatState{System: cmd.System}}
	var err error
	if c.tok, err = m.Tokenizer(); err != nil {
		return nil, err
	}
	// Settings that cannot work are refused before anything is typed.
	if _, err := cmd.sampling(m); err != nil {
		return nil, err
	}
	if _, err := cmd.compression(m); err != nil {
		return nil, err
	}
	if !cmd.Raw {
		c.template, err = chat.Load(m.Source())
		if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
			return nil, err
		}
	}
	if c.template == nil {
		plain, err := eval.PlainFraming(m)
		c.bos = plain.Before
		return c, err
	}
	c.special, err = chat.SpecialTokens(m.Source())
	return c, err
}

func (c *conversation) close() { c.forget() }

// forget gives the session up; the next turn begins a new one.
func (c *conversation) forget() {
	if c.s != nil {
		c.s.Close()
	}
	c.s, c.head, c.headTokens = nil, "", nil
}

// limit is the number of tokens that the context takes.
func (c *conversation) limit() int {
	if n := c.cmd.MaxContext; n > 0 {
		return n
	}
	return c.m.Config().MaxPositions
}

// all returns the messages as the template gets them: the system prompt in front,
// the document as the beginning of the user's first message.
func (c *conversation) all(messages []*chat.Object) []*chat.Object {
	var out []*chat.Object
	if c.System != "" {
		out = append(out, chat.NewMessage("system", c.System))
	}
	for i, m := range messages {
		if i == 0 && c.Document != "" {
			content, _ := m.Get("content")
			m = chat.NewMessage("user", fmt.Sprintf("%s\n\n%s", c.Document, content))
		}
		out = append(out, m)
	}
	return out
}

func (c *conversation) input(messages []*chat.Object) chat.Input {
	return chat.Input{
		Messages: messages, AddGenerationPrompt: true, Extra: c.special,
		Options: chat.Options{Now: func() time.Time { return c.begun }},
	}
}

// render returns the prompt for messages.
func (c *conversation) render(ctx context.Context, messages []*chat.Object) (string, error) {
	messages = c.all(messages)
	if c.template != nil {
		return c.template.Render(ctx, c.input(messages))
	}
	var b strings.Builder
	b.WriteString(c.bos)
	for _, m := range messages {
		content, _ := m.Get("content")
		fmt.Fprintf(&b, "%s\n", content)
	}
	return b.String(), nil
}

// documentHead is the beginning of every prompt up to the end of the document, as
// far as that can be known before there is a question.
func (c *conversation) documentHead(ctx context.Context) (string, error) {
	if c.template == nil {
		text := c.bos
		if c.System != "" {
			text += c.System + "\n"
		}
		return text + c.Document, nil
	}
	var before []*chat.Object
	if c.System != "" {
		before = append(before, chat.NewMessage("system", c.System))
	}
	head, _, err := c.template.Split(ctx, c.input(before), c.Document)
	return head, err
}

// sessionOptions returns the options of a session. Without a document nothing of
// the prompt is compressed, whatever the ratio.
func (c *conversation) sessionOptions() (model.SessionOptions, error) {
	o := c.cmd.session()
	policy, err := c.cmd.compression(c.m)
	if err != nil || policy == nil {
		return o, err
	}
	if c.Document == "" {
		policy.Ratio, policy.BudgetTokens, policy.BudgetBytes = 0, 0, 0
	}
	if policy.Enabled() {
		o.Compression = policy
	}
	return o, nil
}

// begin starts a session that has read head, which is compressed.
func (c *conversation) begin(ctx context.Context, head string, p *progress) error {
	c.forget()
	o, err := c.sessionOptions()
	if err != nil {
		return err
	}
	// The function stays with the session, the line to draw on is each call's own.
	o.Progress = func(done, total int) {
		if c.draw != nil {
			c.draw(done, total)
		}
	}
	s, err := c.m.NewSession(o)
	if err != nil {
		return err
	}
	tokens := c.tok.Encode(head, tokenizer.EncodeOptions{})
	if err := c.prefill(ctx, s, tokens, p); err != nil {
		s.Close()
		return err
	}
	c.s, c.head, c.headTokens = s, head, tokens
	return nil
}

func (c *conversation) prefill(ctx context.Context, s *model.Session, tokens []int32, p *progress) error {
	c.draw = p.tokens("reading", len(tokens), c.m.Config().Layers)
	defer func() { c.draw = nil }()
	return s.Prefill(ctx, tokens)
}

// loadDocument begins a conversation about the text in a file.
func (c *conversation) loadDocument(ctx context.Context, path string, p *progress) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	// Templates strip messages; then the document's end is where it is looked for.
	text := strings.TrimSpace(strings.ToValidUTF8(string(data), "\uFFFD"))
	if text == "" {
		return fmt.Errorf("load %s: the file is empty", path)
	}
	old := c.chatState
	c.chatState = chatState{System: c.System, Document: text}
	if err := c.reread(ctx, p); err != nil {
		c.chatState = old
		return fmt.Errorf("load %s: %w", path, err)
	}
	return nil
}

// reread reads the document, if there is one, into a new session.
func (c *conversation) reread(ctx context.Context, p *progress) error {
	c.forget()
	if c.Document == "" {
		return nil
	}
	head, err := c.documentHead(ctx)
	if err != nil {
		return err
	}
	return c.begin(ctx, head, p)
}

// clear drops the messages. The document stays, compressed as it is; what was said
// about it is taken back out of the cache.
func (c *conversation) clear(ctx context.Context, p *progress) error {
	c.Messages = nil
	if c.s == nil || c.Document == "" {
		c.forget()
		return nil
	}
	if err := c.s.Truncate(len(c.headTokens)); err != nil {
		return c.reread(ctx, p)
	}
	return nil
}

// feed makes the session hold exactly the prompt.
func (c *conversation) feed(ctx context.Context, prompt string, p *progress) error {
	head := ""
	if c.Document != "" {
		i := strings.Index(prompt, c.Document)
		if i < 0 {
			return errors.New("the chat template changes the document's text: it cannot be read before the question")
		}
		head = prompt[:i+len(c.Document)]
	}
	// Some templates put a system prompt or tools behind the document once there
	// are further messages: then it has to be read again.
	if c.s == nil || head != c.head {
		if err := c.begin(ctx, head, p); err != nil {
			return err
		}
	}
	ids := c.encode(prompt)
	held := c.s.Tokens()
	n := 0
	for n < len(held) && n < len(ids) && held[n] == ids[n] {
		n++
	}
	if n == len(ids) {
		n-- // the last token gives the logits
	}
	if n < len(c.headTokens) || c.s.Truncate(n) != nil {
		// Sliding windows and renumbered positions cannot go back.
		if err := c.begin(ctx, head, p); err != nil {
			return err
		}
		n = len(c.headTokens)
	}
	return c.prefill(ctx, c.s, ids[n:], p)
}

// encode returns the tokens of a prompt that begins with the head.
func (c *conversation) encode(prompt string) []int32 {
	if c.head == "" {
		return c.tok.Encode(prompt, tokenizer.EncodeOptions{})
	}
	return append(c.headTokens[:len(c.headTokens):len(c.headTokens)],
		c.tok.Encode(prompt[len(c.head):], tokenizer.EncodeOptions{})...)
}

// turnStats says what a turn took.
type turnStats struct {
	Read, Held, New int // tokens of the prompt that were fed, tokens held then, tokens of the answer
	ReadTime, Time  time.Duration

	NoSystem bool // the template leaves the system prompt out
}

func (s turnStats) write(w io.Writer) {
	rate := func(n int, d time.Duration) float64 { return float64(n) / max(d.Seconds(), 1e-9) }
	fmt.Fprintf(w, "read %d of %d tokens in %s (%.0f tokens/s), answered %d in %s (%.1f tokens/s)\n",
		s.Read, s.Held, since(ms(s.ReadTime)), rate(s.Read, s.ReadTime), s.New, since(ms(s.Time)), rate(s.New, s.Time))
}

// ask puts a message and writes the answer as it comes, and a line break behind
// it. An answer that was broken off stays in the conversation as far as it came; a
// message that could not be read does not.
func (c *conversation) ask(ctx context.Context, text string, out io.Writer, p *progress) (turnStats, error) {
	var st turnStats
	sampling, err := c.cmd.sampling(c.m)
	if err != nil {
		return st, err
	}
	messages := append(c.Messages[:len(c.Messages):len(c.Messages)], chat.NewMessage("user", text))
	prompt, err := c.render(ctx, messages)
	if err != nil {
		return st, err
	}
	st.NoSystem = !strings.Contains(prompt, strings.TrimSpace(c.System))
	start, before := time.Now(), 0
	if c.s != nil {
		before = c.s.Stats().Tokens
	}
	s := c.s
	if err := c.feed(ctx, prompt, p); err != nil {
		return st, c.explain(err)
	}
	p.clear()
	if s != c.s {
		before = 0
	}
	st.Held, st.Read, st.ReadTime = c.s.Len(), c.s.Stats().Tokens-before, time.Since(start)

	start = time.Now()
	answer := newStreamer(c.tok, c.cmd.Stop, out)
	for t, e := range c.s.Generate(ctx, sampling) {
		if e != nil {
			err = e
			break
		}
		st.New++
		stopped, e := answer.token(t.ID)
		if e != nil {
			return st, e // nobody reads any more
		}
		if stopped {
			break
		}
	}
	st.Time = time.Since(start)
	flushed := answer.flush()
	_, e := fmt.Fprintln(out)
	if err == nil || ctx.Err() != nil {
		c.Messages = append(messages, chat.NewMessage("assistant", answer.all.String()))
	}
	return st, c.explain(errors.Join(err, flushed, e))
}

// explain adds what to do about a full context.
func (c *conversation) explain(err error) error {
	if errors.Is(err, model.ErrContextFull) {
		return fmt.Errorf("%w (/clear forgets the conversation, /set ratio and /load FILE compress a document)", err)
	}
	return err
}

// savedChat is what lies beside a saved session.
type savedChat struct {
	chatState
	Begun      time.Time `json:"begun"`
	Before     string    `json:"before"`      // what the prompt has in front of the document
	HeadTokens int       `json:"head_tokens"` // tokens up to the end of the document
}

// sidecar is the name of that file.
func sidecar(path string) string { return path + ".chat.json" }

// save writes the session to path and the messages beside it.
func (c *conversation) save(path string) error {
	if c.s == nil {
		return errors.New("save: nothing has been read yet")
	}
	if err := c.s.Save(path); err != nil {
		return err
	}
	state := savedChat{c.chatState, c.begun, strings.TrimSuffix(c.head, c.Document), len(c.headTokens)}
	err := atomicfile.Write(sidecar(path), 0o644, func(w io.Writer) error { return report.WriteJSON(w, state) })
	if err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// restore goes on with a saved chat, or with a context that run --save wrote.
func (c *conversation) restore(ctx context.Context, path string) error {
	o := c.cmd.session()
	policy, err := c.cmd.compression(c.m)
	if err != nil {
		return err
	}
	if policy != nil && policy.Decode.Enabled() {
		o.Compression = policy
	}
	s, err := c.m.LoadSession(path, o)
	if err != nil {
		return err
	}
	state, err := c.restoreState(ctx, path, s.Tokens())
	if err != nil {
		s.Close()
		return fmt.Errorf("load %s: %w", path, err)
	}
	c.forget()
	c.chatState, c.s = state.chatState, s
	if !state.Begun.IsZero() {
		c.begun = state.Begun
	}
	if state.Document != "" {
		c.head, c.headTokens = state.Before+state.Document, s.Tokens()[:state.HeadTokens]
	}
	return nil
}

// restoreState reads the messages beside a saved session. Without them, the
// session's tokens must be those of a document alone.
func (c *conversation) restoreState(ctx context.Context, path string, tokens []int32) (savedChat, error) {
	var state savedChat
	data, err := os.ReadFile(sidecar(path))
	if err == nil {
		if err := json.Unmarshal(data, &state); err != nil {
			return state, fmt.Errorf("messages in %s: %w", sidecar(path), err)
		}
		if state.HeadTokens < 0 || state.HeadTokens > len(tokens) {
			return state, fmt.Errorf("messages in %s: a document of %d tokens, the session has %d", sidecar(path), state.HeadTokens, len(tokens))
		}
		return state, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return state, err
	}
	framing, err := c.framing(ctx)
	if err != nil {
		return state, err
	}
	document, ok := strings.CutPrefix(c.tok.Decode(tokens, false), framing.Before)
	if !ok || strings.TrimSpace(document) == "" {
		return state, fmt.Errorf("there are no messages beside it (%s), and it does not hold a document alone", sidecar(path))
	}
	state.Document, state.Before, state.HeadTokens = document, framing.Before, len(tokens)
	return state, nil
}

// framing is what run puts around a context.
func (c *conversation) framing(ctx context.Context) (eval.Framing, error) {
	switch {
	case c.template == nil:
		return eval.PlainFraming(c.m)
	case c.cmd.Model == builtin.Name:
		return builtinFraming, nil
	}
	return eval.ChatFraming(ctx, c.m, c.begun)
}
