package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// maxSteps bounds the steps of a normalizer, a pre-tokenizer or a decoder.
const maxSteps = 16

// steps returns the parts of a Sequence, including those of nested Sequences, or
// the part itself.
func (p hfPart) steps(subs func(hfPart) []hfPart) ([]hfPart, error) {
	var out []hfPart
	var flatten func(p hfPart)
	flatten = func(p hfPart) {
		if p.Type != "Sequence" {
			out = append(out, p)
			return
		}
		for _, sub := range subs(p) {
			flatten(sub)
		}
	}
	flatten(p)
	if len(out) > maxSteps {
		return nil, fmt.Errorf("%d steps, expected at most %d", len(out), maxSteps)
	}
	return out, nil
}

// hfNormalizers makes the steps of a normalizer.
func hfNormalizers(p hfPart) ([]normalizer, error) {
	steps, err := p.steps(func(p hfPart) []hfPart { return p.Normalizers })
	var out []normalizer
	grown := 1
	for _, p := range steps {
		n, times, err := hfNormalizer(p)
		if err != nil {
			return nil, err
		}
		if grown *= times; grown > maxGrowth {
			return nil, fmt.Errorf("a text may become %d times as long, expected at most %d", grown, maxGrowth)
		}
		out = append(out, n)
	}
	return out, err
}

// hfNormalizer makes one step, which lengthens a text by a factor of up to times.
func hfNormalizer(p hfPart) (n normalizer, times int, err error) {
	switch p.Type {
	// The factors are those of Unicode Standard Annex 15, for UTF-8.
	case "NFC":
		return unicodeForm(norm.NFC), 3, nil
	case "NFD":
		return unicodeForm(norm.NFD), 3, nil
	case "NFKC":
		return unicodeForm(norm.NFKC), 11, nil
	case "NFKD":
		return unicodeForm(norm.NFKD), 11, nil
	case "Lowercase":
		return lowercase{}, 2, nil
	case "Strip":
		return stripBlanks{p.StripLeft, p.StripRight}, 1, nil
	case "Prepend":
		if len(p.Prepend) > maxReplacement {
			return nil, 0, fmt.Errorf("type Prepend: %d bytes, expected at most %d", len(p.Prepend), maxReplacement)
		}
		return prependText(p.Prepend), 1, nil
	case "Replace":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, 0, fmt.Errorf("type Replace: %w", err)
		}
		return replaceText{m, p.Content}, growth(m, p.Content), nil
	}
	return nil, 0, unsupported("type %q", p.Type)
}

func (p *hfPattern) matcher() (matcher, error) {
	switch {
	case p != nil && p.String != nil && *p.String != "":
		return literal(*p.String), nil
	case p != nil && p.Regex != nil && *p.Regex != "":
		return newMatcher(*p.Regex)
	}
	return nil, errors.New("no pattern, expected String or Regex")
}

// hfPreTokenizer appends the steps of a pre-tokenizer; bytes says that their
// output is in the byte-level alphabet.
func hfPreTokenizer(out []preTokenizer, p hfPart) (_ []preTokenizer, bytes bool, err error) {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.PreTokenizers {
			if bytes {
				step, err := hfAfterBytes(sub)
				if err != nil {
					return nil, false, err
				}
				out = append(out, step)
				continue
			}
			if out, bytes, err = hfPreTokenizer(out, sub); err != nil {
				return nil, false, err
			}
		}
		return out, bytes, nil
	case "ByteLevel":
		b := byteLevel{prefixSpace: isTrue(p.AddPrefixSpace)}
		if isTrue(p.UseRegex) {
			if b.words, err = newMatcher(gpt2Pattern); err != nil {
				return nil, false, err
			}
		}
		switch {
		case b.prefixSpace:
			out = append(out, b)
		case b.words != nil:
			out = append(out, split{m: b.words})
		}
		return out, true, nil
	case "Punctuation":
		how, ok := behaviours[cmp.Or(p.Behavior, "Isolated")]
		if !ok {
			return nil, false, unsupported("type Punctuation: behavior %q", p.Behavior)
		}
		return append(out, split{m: punctuation(), how: how}), false, nil
	case "Split":
		m, err := p.Pattern.matcher()
		if err != nil {
			return nil, false, fmt.Errorf("type Split: %w", err)
		}
		how, ok := behaviours[p.Behavior]
		if !ok {
			return nil, false, unsupported("type Split: behavior %q", p.Behavior)
		}
		return append(out, split{m: m, how: how, invert: p.Invert}), false, nil
	case "Digits":
		if p.IndividualDigits {
			return append(out, split{m: digitRuns{classes(), 1}}), false, nil
		}
		return append(out, split{m: digitRuns{classes(), math.MaxInt}, how: contiguous}), false, nil
	case "Metaspace":
		m := metaspace{mark: p.Replacement, split: isTrue(p.Split)}
		if oneRune(p.Replacement) == 0 {
			return nil, false, fmt.Errorf("type Metaspace: replacement %q, expected one character", p.Replacement)
		}
		if m.scheme, err = p.scheme(); err != nil {
			return nil, false, err
		}
		return append(out, m), false, nil
	}
	return nil, false, unsupported("type %q", p.Type)
}

// hfAfterBytes makes a step that follows ByteLevel, whose output is in the byte-level
// alphabet. The steps work on the bytes themselves, so only those are read of which it is
// clear what they do to a byte.
func hfAfterBytes(p hfPart) (preTokenizer, error) {
	switch p.Type {
	case "Digits":
		if p.IndividualDigits {
			return split{m: byteDigits(1)}, nil
		}
		return split{m: byteDigits(math.MaxInt), how: contiguous}, nil
	case "Split":
		steps, _, err := hfPreTokenizer(nil, p)
		if err != nil {
			return nil, err
		}
		if s := steps[0].(split); onlyVisible(s.m) {
			return s, nil
		}
		return nil, unsupported("Split after ByteLevel at other than visible ASCII characters")
	}
	return nil, unsupported("%s after ByteLevel", p.Type)
}

// onlyVisible reports whether m looks at nothing but visible ASCII characters, which stand
// for themselves in the byte-level alphabet.
func onlyVisible(m matcher) bool {
	switch m := m.(type) {
	case literal:
		return !strings.ContainsFunc(string(m), func(r rune) bool { return r < '!' || r > '~' })
	case *pattern:
		return m.hungry && !slices.ContainsFunc(m.code, func(in instr) bool {
			return in.op == opAssert || in.set != nil && !in.set.within('!', '~')
		})
	}
	return false
}

// scheme is the prepend scheme of a Metaspace; add_prefix_space is its older form.
func (p hfPart) scheme() (prependScheme, error) {
	if p.PrependScheme == nil {
		if isTrue(p.AddPrefixSpace) {
			return prependAlways, nil
		}
		return prependNever, nil
	}
	switch *p.PrependScheme {
	case "always":
		return prependAlways, nil
	case "first":
		return prependFirst, nil
	case "never":
		return prependNever, nil
	}
	return 0, fmt.Errorf("type Metaspace: prepend_scheme %q, expected always, first or never", *p.PrependScheme)
}

// hfPostProcessor sets the tokens around a text.
func (t *Tokenizer) hfPostProcessor(p hfPart) error {
	switch p.Type {
	case "Sequence":
		for _, sub := range p.Processors {
			if err := t.hfPostProcessor(sub); err != nil {
				return err
			}
		}
		return nil
	case "ByteLevel":
		return nil // changes offsets only
	case "BertProcessing", "RobertaProcessing":
		cls, err := tokenAndID(p.Cls)
		if err != nil {
			return fmt.Errorf("%s: cls: %w", p.Type, err)
		}
		sep, err := tokenAndID(p.Sep)
		if err != nil {
			return fmt.Errorf("%s: sep: %w", p.Type, err)
		}
		t.prefix = append([]int32{cls}, t.prefix...)
		t.suffix = append(t.suffix, sep)
		return nil
	case "TemplateProcessing":
		var before, after []int32
		texts := 0
		for _, part := range p.Single {
			for kind, v := range part {
				switch {
				case kind == "Sequence" && v.ID == "A" && len(part) == 1:
					texts++
				case kind == "SpecialToken" && len(part) == 1:
					special, ok := p.SpecialTokens[v.ID]
					if !ok {
						return fmt.Errorf("type TemplateProcessing: %q is not among its special_tokens", v.ID)
					}
					for _, id := range special.IDs {
						if err := checkID(id); err != nil {
							return fmt.Errorf("type TemplateProcessing: %q: %w", v.ID, err)
						}
						if texts == 0 {
							before = append(before, int32(id))
						} else {
							after = append(after, int32(id))
						}
					}
				default:
					return unsupported("type TemplateProcessing: %s %q in a single text", kind, v.ID)
				}
			}
		}
		if texts != 1 {
			return fmt.Errorf("type TemplateProcessing: found the text %d times in the template, expected once", texts)
		}
		t.prefix = append(before, t.prefix...)
		t.suffix = append(t.suffix, after...)
		return nil
	}
	return unsupported("type %q", p.Type)
}

// tokenAndID reads ["</s>", 2].
func tokenAndID(raw json.RawMessage) (int32, error) {
	var pair []json.RawMessage
	var id int64
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 {
		return 0, fmt.Errorf("found %.40s, expected a token and its id", raw)
	}
	if err := json.Unmarshal(pair[1], &id); err != nil {
		return 0, fmt.Errorf("found id %.40s, expected an integer", pair[1])
	}
	return int32(id), checkID(id)
}
