package dialog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Format is how a model's prompts are written: by its chat template, or as
// plain lines if it has none. It is immutable and safe for concurrent use.
type Format struct {
	tok      *tokenizer.Tokenizer
	template *chat.Template // nil: plain lines
	special  *chat.Object
	bos      string // before plain lines
	now      time.Time
}

// NewFormat reads a model's tokenizer and chat template; a checkpoint without a
// template has the format of [PlainFormat]. The template takes now as the
// current time, so that a conversation's prompt does not change at midnight.
func NewFormat(m *model.Model, now time.Time) (*Format, error) {
	src := m.Source()
	if src == nil {
		return nil, errors.New("a model made in memory has no chat template")
	}
	t, err := chat.Load(src)
	if errors.Is(err, chat.ErrNoTemplate) {
		return PlainFormat(m)
	}
	if err != nil {
		return nil, err
	}
	f := &Format{template: t, now: now}
	if f.special, err = chat.SpecialTokens(src); err != nil {
		return nil, err
	}
	f.tok, err = m.Tokenizer()
	return f, err
}

// Template returns the source of the chat template; empty if there is none.
func (f *Format) Template() string {
	if f.template == nil {
		return ""
	}
	return f.template.Source()
}

// SpecialToken returns the text of the checkpoint's special token with the
// given name, such as "pad_token"; empty if it has none.
func (f *Format) SpecialToken(name string) string {
	if f.special == nil {
		return ""
	}
	v, _ := f.special.Get(name)
	text, _ := v.(string)
	return text
}

// At returns the format at another time, see [NewFormat].
func (f *Format) At(now time.Time) *Format {
	at := *f
	at.now = now
	return &at
}

// PlainFormat returns the format without a template: what the tokenizer puts
// before every text, then the contents of all messages, each followed by a line
// break.
func PlainFormat(m *model.Model) (*Format, error) {
	plain, err := PlainFraming(m)
	if err != nil {
		return nil, err
	}
	f := &Format{bos: plain.Before}
	f.tok, err = m.Tokenizer()
	return f, err
}

func (f *Format) input(messages []*chat.Object) chat.Input {
	return chat.Input{
		Messages: messages, AddGenerationPrompt: true, SpecialTokens: f.special,
		Options: chat.Options{Now: func() time.Time { return f.now }},
	}
}

// render returns the prompt for messages, followed by the header of the
// answer.
func (f *Format) render(ctx context.Context, messages []*chat.Object) (chat.Prompt, error) {
	if f.template != nil {
		return f.template.Render(ctx, f.input(messages))
	}
	parts := []chat.Prompt{own(f.bos)}
	for _, m := range messages {
		content, _ := m.Get("content")
		parts = append(parts, chat.Data(fmt.Sprintln(content)))
	}
	return chat.Join(parts...), nil
}

// head returns the common beginning of all prompts in which the given
// messages are followed by a user message that starts with text, up to the
// end of text.
func (f *Format) head(ctx context.Context, before []*chat.Object, text string) (chat.Prompt, error) {
	if f.template == nil {
		head, err := f.render(ctx, before)
		return chat.Join(head, chat.Data(text)), err
	}
	head, _, err := f.template.Split(ctx, f.input(before), text)
	return head, err
}

// Tokens returns the tokens of the prompt for a conversation, if there are at
// most limit: the one way from messages, tools and documents to what a model
// reads. Only the template writes control tokens; text in in that looks like one
// stays text. Special tokens, the time and the lack of a template come from the
// format; without a template only the contents of messages are written. A longer
// prompt is a *tokenizer.TooLongError; if the template refuses the conversation,
// the error wraps a *chat.RaisedError.
func (f *Format) Tokens(ctx context.Context, in chat.Input, limit int) ([]int32, error) {
	p, err := f.prompt(ctx, in)
	if err != nil {
		return nil, err
	}
	return f.tok.EncodeContext(ctx, p.Text, limit, tokenizer.EncodeOptions{Data: p.Data})
}

// ErrNoText says that the last message of a conversation cannot be continued.
var ErrNoText = errors.New("the last message has no text to be continued, or the chat template changes it")

// ContinueTokens is Tokens for a conversation whose last message is the beginning of
// the answer: nothing follows its text. If there is none, the error is ErrNoText.
func (f *Format) ContinueTokens(ctx context.Context, in chat.Input, limit int) ([]int32, error) {
	in.AddGenerationPrompt = false
	p, err := f.prompt(ctx, in)
	if err != nil {
		return nil, err
	}
	text := ""
	if n := len(in.Messages); n > 0 {
		content, _ := in.Messages[n-1].Get("content")
		text, _ = content.(string)
	}
	// Some templates drop white space around texts.
	bare := strings.TrimSpace(text)
	at := -1
	for _, d := range slices.Backward(p.Data) { // the end of the turn may hold the text, too
		if at = strings.LastIndex(p.Text[d.Start:d.End], bare); at >= 0 {
			at += d.Start
			break
		}
	}
	if bare == "" || at < 0 {
		return nil, ErrNoText
	}
	end := at + len(bare)
	if left := strings.TrimLeftFunc(text, unicode.IsSpace); strings.HasPrefix(p.Text[at:], left) {
		end = at + len(left)
	}
	p = p.Slice(0, end)
	return f.tok.EncodeContext(ctx, p.Text, limit, tokenizer.EncodeOptions{Data: p.Data})
}

// ErrNoPlace says that a context cannot be put in front of a conversation.
var ErrNoPlace = errors.New("put the context in front of the conversation")

// SplitTokens is Tokens for a conversation about a context, which is put at the
// beginning of the first user message, followed by a blank line. The first n tokens are
// those up to the end of the context, encoded on their own: they are the same for every
// conversation with the same messages before it. front holds the tokens of what comes
// before the context, encoded on its own: messages, tools, or at least [LeastFront] tokens of
// the template, which may add a system prompt; see [Protected]. Without a message of a user,
// without a context, and if the template changes the context, the error wraps ErrNoPlace.
func (f *Format) SplitTokens(ctx context.Context, in chat.Input, text string, limit int) (tokens, front []int32, n int, err error) {
	text = strings.TrimSpace(text) // templates do that, too
	if text == "" {
		return nil, nil, 0, fmt.Errorf("%w: found an empty text", ErrNoPlace)
	}
	at := slices.IndexFunc(in.Messages, func(m *chat.Object) bool { role, _ := m.Get("role"); return role == "user" })
	if at < 0 {
		return nil, nil, 0, fmt.Errorf("%w: found no message with the role user", ErrNoPlace)
	}
	content, _ := in.Messages[at].Get("content")
	in.Messages = slices.Clone(in.Messages)
	message := inFront(text, content)
	in.Messages[at] = chat.NewMessage("user", message)
	p, err := f.prompt(ctx, in)
	if err != nil {
		return nil, nil, 0, err
	}
	start := place(p, text, message)
	if start < 0 {
		return nil, nil, 0, fmt.Errorf("%w: the chat template changes its text, so its prefill cannot precede the question", ErrNoPlace)
	}
	end := start + len(text)
	head, tail := p.Slice(0, end), p.Slice(end, len(p.Text))
	tokens, err = f.tok.EncodeContext(ctx, head.Text, limit, tokenizer.EncodeOptions{Data: head.Data})
	if err != nil {
		return nil, nil, 0, err
	}
	if front = f.front(head, start); at == 0 && in.Tools == nil && len(front) < LeastFront {
		front = nil
	}
	rest, err := f.tok.EncodeContext(ctx, tail.Text, limit-len(tokens), tokenizer.EncodeOptions{Data: tail.Data})
	return append(tokens, rest...), front, len(tokens), err
}

// inFront returns a message with the text it is about before it.
func inFront(text string, content any) string { return fmt.Sprintf("%s\n\n%s", text, content) }

// place returns where the text that a message begins with is in a prompt, -1 if the
// template has changed it. Earlier messages and the template itself may hold the same
// text, so the whole message is looked for first.
func place(p chat.Prompt, text, message string) int {
	if i := strings.Index(p.Text, strings.TrimRightFunc(message, unicode.IsSpace)); i >= 0 {
		return i
	}
	return strings.Index(p.Text, text)
}

// TurnsTokens is Tokens for a conversation whose last keep turns, and the question after
// them, are to be left whole: the first n tokens are those of the messages before them; n
// is 0 without any. A turn begins with a user message. front is as for SplitTokens.
func (f *Format) TurnsTokens(ctx context.Context, in chat.Input, keep, limit int) (tokens, front []int32, n int, err error) {
	p, err := f.prompt(ctx, in)
	if err != nil {
		return nil, nil, 0, err
	}
	if tokens, err = f.tok.EncodeContext(ctx, p.Text, limit, tokenizer.EncodeOptions{Data: p.Data}); err != nil {
		return nil, nil, 0, err
	}
	var turns []int // where they begin
	for i, m := range in.Messages {
		if role, _ := m.Get("role"); role == "user" {
			turns = append(turns, i)
		}
	}
	older := len(turns) - 1 - keep
	if older < 1 {
		return tokens, nil, 0, nil
	}
	before, start := in, 0
	before.Messages, before.AddGenerationPrompt = in.Messages[:turns[older]], false
	old, err := f.prompt(ctx, before)
	if err != nil {
		return nil, nil, 0, err
	}
	for i, m := range in.Messages[:turns[0]+1] { // find the text of the first turn, after what precedes it
		content, _ := m.Get("content")
		at := strings.Index(p.Text[start:], strings.TrimSpace(fmt.Sprint(content)))
		if at < 0 {
			continue
		}
		if start += at; i < turns[0] {
			start += len(strings.TrimSpace(fmt.Sprint(content)))
		}
	}
	end := common([]byte(p.Text), []byte(old.Text))
	head := p.Slice(0, end)
	return tokens, f.front(p, min(start, end)), common(tokens, f.tok.Encode(head.Text, tokenizer.EncodeOptions{Data: head.Data})), nil
}

// front returns the tokens of a prompt's text before byte at, encoded on its own.
func (f *Format) front(p chat.Prompt, at int) []int32 {
	p = p.Slice(0, at)
	return f.tok.Encode(p.Text, tokenizer.EncodeOptions{Data: p.Data})
}

// Render returns the prompt for a conversation as text, see Tokens.
func (f *Format) Render(ctx context.Context, in chat.Input) (chat.Prompt, error) {
	return f.prompt(ctx, in)
}

func (f *Format) prompt(ctx context.Context, in chat.Input) (chat.Prompt, error) {
	if f.template == nil {
		return f.render(ctx, in.Messages)
	}
	format := f.input(nil)
	in.SpecialTokens, in.Now = format.SpecialTokens, format.Now
	return f.template.Render(ctx, in)
}

// Encode returns the tokens of a prompt, or of a part of one, for a context of at
// most limit tokens. A prompt that does not fit is detected without encoding all
// of it; the error wraps model.ErrContextFull.
func Encode(ctx context.Context, tok *tokenizer.Tokenizer, p chat.Prompt, limit int) ([]int32, error) {
	ids, err := tok.EncodeContext(ctx, p.Text, limit, tokenizer.EncodeOptions{Data: p.Data})
	var long *tokenizer.TooLongError
	if errors.As(err, &long) {
		return nil, fmt.Errorf("%w: a text of %d bytes has more than %d tokens", model.ErrContextFull, long.Bytes, long.Limit)
	}
	return ids, err
}
