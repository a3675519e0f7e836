package dialog

import (
	"context"
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
//	Before + context | Between + question + After + answer prefix
//
// The bar is where compression happens. Special tokens stand as text in Before,
// Between and After, and nowhere else.
type Framing struct {
	Before  string `json:"before"`
	Between string `json:"between"`
	After   string `json:"after"`
}

// Prompt returns the two parts of a prompt. Context, question and answer prefix
// are data in it.
func (f Framing) Prompt(context, question, answerPrefix string) (head, tail chat.Prompt) {
	return chat.Join(own(f.Before), chat.Data(context)),
		chat.Join(own(f.Between), chat.Data(question), own(f.After), chat.Data(answerPrefix))
}

// own is text of the framing itself.
func own(text string) chat.Prompt { return chat.Prompt{Text: text} }

// FixedDate is the date that evaluations and profiles put into prompts whose
// template asks for today's, so that their results do not depend on the day.
var FixedDate = time.Date(2024, time.July, 26, 12, 0, 0, 0, time.UTC)

// ChatFraming is the framing of one user message by the checkpoint's chat
// template, with the header of the answer behind it. now is what the template
// takes for the current time. A checkpoint without a template gives
// [PlainFraming].
func ChatFraming(ctx context.Context, m *model.Model, now time.Time) (Framing, error) {
	f, err := NewFormat(m, now)
	if err != nil {
		return Framing{}, fmt.Errorf("chat framing: %w", err)
	}
	return f.framing(ctx)
}

func (f *Format) framing(ctx context.Context) (Framing, error) {
	if f.template == nil {
		return Framing{Before: f.bos, After: "\n"}, nil
	}
	const content = "lukv-content-7f3a"
	before, after, err := f.template.Split(ctx, f.input(nil), content)
	if err != nil {
		return Framing{}, fmt.Errorf("chat framing: %w", err)
	}
	return Framing{Before: strings.TrimSuffix(before.Text, content), After: after.Text}, nil
}

// PlainFraming is the framing without a template: the tokens that the
// tokenizer puts in front of every text, and a line break behind the question.
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
