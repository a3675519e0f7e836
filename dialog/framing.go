package dialog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// Framing is the text around context and question in a prompt:
//
//	Before + System + Opening + context | Between + question + After + answer prefix
//
// The bar is where compression happens. System is a system prompt, "" for none. Special
// tokens may be written in Before, Opening, Between and After, and nowhere else.
type Framing struct {
	Before  string `json:"before"`
	System  string `json:"system,omitempty"`
	Opening string `json:"opening,omitempty"`
	Between string `json:"between"`
	After   string `json:"after"`
}

// Prompt returns the two parts of a prompt. In it, system prompt, context, question and
// answer prefix are data.
func (f Framing) Prompt(context, question, answerPrefix string) (head, tail chat.Prompt) {
	return chat.Join(own(f.Before), chat.Data(f.System), own(f.Opening), chat.Data(context)),
		chat.Join(own(f.Between), chat.Data(question), own(f.After), chat.Data(answerPrefix))
}

// own returns a prompt of the framing's own text.
func own(text string) chat.Prompt { return chat.Prompt{Text: text} }

// FixedDate is the date that evaluations and profiles put into prompts whose
// template asks for today's, so that their results do not depend on the day.
var FixedDate = time.Date(2024, time.July, 26, 12, 0, 0, 0, time.UTC)

// ChatFraming returns the framing of one user message by the checkpoint's
// chat template, followed by the header of the answer. The template takes
// now as the current time. For a checkpoint without a template it returns
// [PlainFraming].
func ChatFraming(ctx context.Context, m *model.Model, now time.Time) (Framing, error) {
	return SystemFraming(ctx, m, now, "")
}

// SystemFraming is [ChatFraming] with a system prompt, "" for none. If the template has
// no place for one before the message, it returns an error.
func SystemFraming(ctx context.Context, m *model.Model, now time.Time, system string) (Framing, error) {
	f, err := NewFormat(m, now)
	if err != nil {
		return Framing{}, fmt.Errorf("chat framing: %w", err)
	}
	return f.framing(ctx, system)
}

func (f *Format) framing(ctx context.Context, system string) (Framing, error) {
	if f.template == nil {
		plain := Framing{Before: f.bos, After: "\n"}
		return plain.WithSystem(system, "\n"), nil
	}
	const content, prompt = "lukv-content-7f3a", "lukv-system-91c4"
	var messages []*chat.Object
	if system != "" {
		messages = append(messages, chat.NewMessage("system", prompt))
	}
	before, after, err := f.template.Split(ctx, f.input(messages), content)
	if err != nil {
		return Framing{}, fmt.Errorf("chat framing: %w", err)
	}
	framing := Framing{Before: strings.TrimSuffix(before.Text, content), After: after.Text}
	if system == "" {
		return framing, nil
	}
	front, opening, found := strings.Cut(framing.Before, prompt)
	if !found {
		return Framing{}, errors.New("chat framing: the chat template has no system prompt in front of the first message")
	}
	framing.Before = front
	return framing.WithSystem(system, opening), nil
}

// WithSystem returns the framing with a system prompt after Before, "" for
// none, and opening, the text between it and the context.
func (f Framing) WithSystem(system, opening string) Framing {
	if f.System, f.Opening = system, opening; system == "" {
		f.Opening = ""
	}
	return f
}

// PlainFraming returns the framing without a template: the tokens that the
// tokenizer puts before every text, and a line break after the question.
func PlainFraming(m *model.Model) (Framing, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return Framing{}, fmt.Errorf("plain framing: %w", err)
	}
	const text = "a"
	bare := tok.Encode(text, tokenizer.EncodeOptions{})
	whole := tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
	var before strings.Builder
	for i := 0; i+len(bare) <= len(whole); i++ {
		if slices.Equal(whole[i:i+len(bare)], bare) {
			return Framing{Before: before.String(), After: "\n"}, nil
		}
		before.WriteString(tok.Piece(whole[i]))
	}
	return Framing{After: "\n"}, nil
}
