package structured

import (
	"bytes"
	"context"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"

	"github.com/lukv/lukv/internal/grammar"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tokenizer"
)

// maxGrammars is how many grammars a compiler keeps.
const maxGrammars = 16

// Compiler compiles formats for the tokens of a model and keeps those used last.
type Compiler struct {
	m   *model.Model
	tok *tokenizer.Tokenizer

	once  sync.Once
	vocab *grammar.Vocabulary

	mu     sync.Mutex
	byKey  map[[sha256.Size]byte]*grammar.Grammar
	recent [][sha256.Size]byte // least recently used first
}

// NewCompiler returns the compiler for a model. The model must have a tokenizer.
func NewCompiler(m *model.Model) (*Compiler, error) {
	tok, err := m.Tokenizer()
	if err != nil {
		return nil, err
	}
	return &Compiler{m: m, tok: tok, byKey: map[[sha256.Size]byte]*grammar.Grammar{}}, nil
}

// vocabulary returns the bytes of the model's tokens. Control tokens never match, as they are
// not text, except for those that calls have in them.
func (c *Compiler) vocabulary() *grammar.Vocabulary {
	c.once.Do(func() {
		controls := map[int32]string{}
		for _, mark := range inCalls {
			if id, ok := c.tok.ID(mark); ok && c.tok.IsSpecial(id) {
				controls[id] = mark
			}
		}
		c.vocab = grammar.NewVocabulary(c.m.Config().Vocab, func(id int32) []byte {
			if mark, ok := controls[id]; ok && !c.m.Ends(id, &model.Sampling{}) {
				return []byte(noText + mark)
			}
			if c.tok.IsSpecial(id) || c.m.Ends(id, &model.Sampling{}) {
				return nil
			}
			text := c.tok.TokenBytes(id)
			if bytes.Contains(text, []byte(noText)) { // it would spell a control token
				return nil
			}
			return text
		})
	})
	return c.vocab
}

// noText precedes the name of a control token in the bytes that a grammar knows it by. It is no
// UTF-8, so that no format of text has it.
const noText = "\xff"

// mark is a text of a syntax in which control tokens of the model stand for themselves.
func (c *Compiler) mark(text string) grammar.Part {
	for _, mark := range inCalls {
		if id, ok := c.tok.ID(mark); ok && c.tok.IsSpecial(id) {
			text = strings.ReplaceAll(text, mark, noText+mark)
		}
	}
	return grammar.Text(text)
}

// grammar compiles a format, or finds it compiled.
func (c *Compiler) grammar(ctx context.Context, f Format) (*grammar.Grammar, error) {
	if f.err != nil {
		return nil, f.err
	}
	vocab := c.vocabulary()
	key := sha256.Sum256(f.key)
	find := func() *grammar.Grammar {
		i := slices.Index(c.recent, key)
		if i < 0 {
			return nil
		}
		c.recent = append(slices.Delete(c.recent, i, i+1), key)
		return c.byKey[key]
	}
	c.mu.Lock()
	g := find()
	c.mu.Unlock()
	if g != nil {
		return g, nil
	}
	g, err := grammar.Compile(ctx, vocab, f.part) // unlocked: nobody waits for another's large one
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := find(); other != nil {
		return other, nil
	}
	if len(c.recent) >= maxGrammars {
		delete(c.byKey, c.recent[0])
		c.recent = c.recent[1:]
	}
	c.byKey[key], c.recent = g, append(c.recent, key)
	return g, nil
}
