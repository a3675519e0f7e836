package grammar

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits on the patterns of schemas.
const (
	maxPatternStates = 1 << 15 // of a pattern
	maxRanges        = 1 << 15 // of characters, in all classes of a pattern
	maxRepeat        = 1000
)

// ecmaParser translates the regular expressions of ECMA 262 with the flag u to Go's syntax
// trees, as far as they are regular: lookaround, backreferences and word boundaries are
// refused. Sets of characters are written as the members of a class of RE2, whose parser
// sorts, joins and negates them.
type ecmaParser struct {
	text   string
	at     int
	depth  int
	ranges int // of all classes
}

// parsePattern returns the syntax tree of a pattern, without capturing groups.
func parsePattern(text string) (*syntax.Regexp, error) {
	p := &ecmaParser{text: text}
	out, err := p.choice()
	switch {
	case err != nil:
		return nil, err
	case p.at < len(p.text):
		return nil, errors.New("a ) that nothing opens")
	case states(out) > maxPatternStates:
		return nil, fmt.Errorf("it needs more than %d states", maxPatternStates)
	}
	return out, nil
}

// states estimates the size of an expression when its repetitions are written out, at most
// a little more than maxPatternStates.
func states(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		n += states(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(1, re.Max, re.Min)
	}
	return min(n, maxPatternStates+1)
}

func (p *ecmaParser) has(s string) bool {
	if !strings.HasPrefix(p.text[p.at:], s) {
		return false
	}
	p.at += len(s)
	return true
}

// next reads a character.
func (p *ecmaParser) next() (rune, error) {
	if p.at == len(p.text) {
		return 0, errors.New("it ends too early")
	}
	r, n := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += n
	return r, nil
}

func (p *ecmaParser) choice() (*syntax.Regexp, error) {
	if p.depth++; p.depth > maxNesting {
		return nil, fmt.Errorf("groups are nested deeper than %d", maxNesting)
	}
	defer func() { p.depth-- }()
	out := &syntax.Regexp{Op: syntax.OpAlternate}
	for {
		s, err := p.sequence()
		if err != nil {
			return nil, err
		}
		if out.Sub = append(out.Sub, s); !p.has("|") {
			return out, nil
		}
	}
}

func (p *ecmaParser) sequence() (*syntax.Regexp, error) {
	out := &syntax.Regexp{Op: syntax.OpConcat}
	for p.at < len(p.text) && p.text[p.at] != '|' && p.text[p.at] != ')' {
		x, err := p.atom()
		if err != nil {
			return nil, err
		}
		least, most, is, err := p.quantifier()
		switch {
		case err != nil:
			return nil, err
		case is && (x.Op == syntax.OpBeginText || x.Op == syntax.OpEndText):
			return nil, errors.New("an anchor that is repeated")
		case is:
			p.has("?") // lazy: the same texts
			x = &syntax.Regexp{Op: syntax.OpRepeat, Sub: []*syntax.Regexp{x}, Min: least, Max: most}
		}
		out.Sub = append(out.Sub, x)
	}
	if len(out.Sub) == 0 {
		out.Op = syntax.OpEmptyMatch
	}
	return out, nil
}

// quantifier reads a quantifier, if there is one; most is -1 without a bound.
func (p *ecmaParser) quantifier() (least, most int, is bool, err error) {
	switch {
	case p.has("*"):
		return 0, -1, true, nil
	case p.has("+"):
		return 1, -1, true, nil
	case p.has("?"):
		return 0, 1, true, nil
	}
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 || p.text[p.at] != '{' {
		return 0, 0, false, nil
	}
	a, b, two := strings.Cut(p.text[p.at+1:p.at+end], ",")
	digits := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	if !digits(a) || two && b != "" && !digits(b) {
		return 0, 0, false, nil
	}
	p.at += end + 1
	least, err = strconv.Atoi(a)
	switch most = least; {
	case two && b == "":
		most = -1
	case two && err == nil:
		most, err = strconv.Atoi(b)
	}
	switch {
	case err != nil || least > maxRepeat || most > maxRepeat:
		return 0, 0, false, fmt.Errorf("more than %d repetitions", maxRepeat)
	case most >= 0 && most < least:
		return 0, 0, false, fmt.Errorf("{%d,%d}: the bounds are the wrong way round", least, most)
	}
	return least, most, true, nil
}

func (p *ecmaParser) atom() (*syntax.Regexp, error) {
	before := p.at
	if _, _, is, err := p.quantifier(); is || err != nil {
		return nil, fmt.Errorf("%.20q: there is nothing to repeat", p.text[before:])
	}
	r, err := p.next()
	if err != nil {
		return nil, err
	}
	switch r {
	case '^':
		return &syntax.Regexp{Op: syntax.OpBeginText}, nil
	case '$':
		return &syntax.Regexp{Op: syntax.OpEndText}, nil
	case '.':
		return p.set(`^\n\r\x{2028}\x{2029}`)
	case '(':
		return p.group()
	case '[':
		return p.class()
	case '\\':
		m, err := p.escape(false)
		if err != nil {
			return nil, err
		}
		return p.set(m.text)
	}
	return &syntax.Regexp{Op: syntax.OpLiteral, Rune: []rune{r}}, nil
}

func (p *ecmaParser) group() (*syntax.Regexp, error) {
	switch {
	case p.has("?:"):
	case p.has("?="), p.has("?!"):
		return nil, errors.New("lookahead is not supported")
	case p.has("?<="), p.has("?<!"):
		return nil, errors.New("lookbehind is not supported")
	case p.has("?<"):
		end := strings.IndexByte(p.text[p.at:], '>')
		if end < 1 {
			return nil, errors.New("a group whose name does not end")
		}
		p.at += end + 1
	case p.has("?"):
		return nil, fmt.Errorf("the group (?%.1s is not supported", p.text[p.at:])
	}
	out, err := p.choice()
	if err == nil && !p.has(")") {
		err = errors.New("a ( that nothing closes")
	}
	return out, err
}

// set returns the class of RE2 with the given members.
func (p *ecmaParser) set(members string) (*syntax.Regexp, error) {
	out, err := syntax.Parse("["+members+"]", syntax.Perl)
	if err != nil {
		return nil, err
	}
	if p.ranges += len(out.Rune)/2 + 1; p.ranges > maxRanges {
		return nil, fmt.Errorf("its classes have more than %d ranges of characters", maxRanges)
	}
	return out, nil
}

// member is a part of a class, as RE2 writes it; char is its only character, -1 if it is a
// class.
type member struct {
	text string
	char rune
}

func char(r rune) member { return member{fmt.Sprintf(`\x{%x}`, r), r} }

func (p *ecmaParser) class() (*syntax.Regexp, error) {
	negated := p.has("^")
	var list strings.Builder
	for !p.has("]") {
		lo, err := p.member()
		if err != nil {
			return nil, err
		}
		if rest := p.text[p.at:]; !strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "-]") {
			list.WriteString(lo.text)
			continue
		}
		p.at++
		hi, err := p.member()
		if err != nil {
			return nil, err
		}
		if lo.char < 0 || hi.char < lo.char {
			return nil, errors.New("a range in [] whose ends are not two characters, the lesser first")
		}
		list.WriteString(lo.text + "-" + hi.text)
	}
	switch {
	case list.Len() > 0 && negated:
		return p.set("^" + list.String())
	case list.Len() > 0:
		return p.set(list.String())
	case negated:
		return &syntax.Regexp{Op: syntax.OpAnyChar}, nil
	}
	return &syntax.Regexp{Op: syntax.OpNoMatch}, nil
}

// member reads a character of a class, or a class within it.
func (p *ecmaParser) member() (member, error) {
	r, err := p.next()
	if err != nil {
		return member{}, errors.New("a [ that nothing closes")
	}
	if r == '\\' {
		return p.escape(true)
	}
	return char(r), nil
}

var (
	// White space and line ends of ECMA 262, and all other characters.
	ecmaSpace    = `\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}`
	ecmaNotSpace = `\x00-\x08\x0e-\x1f!-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}` +
		`\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{fefe}\x{ff00}-\x{10ffff}`

	escapedClasses = map[rune]string{'d': `\d`, 'D': `\D`, 'w': `\w`, 'W': `\W`, 's': ecmaSpace, 'S': ecmaNotSpace}
	escapedChars   = map[rune]rune{'t': '\t', 'n': '\n', 'v': '\v', 'f': '\f', 'r': '\r'}
)

// escape reads the rest of an escape.
func (p *ecmaParser) escape(inClass bool) (member, error) {
	r, err := p.next()
	if err != nil {
		return member{}, err
	}
	if class, ok := escapedClasses[r]; ok {
		return member{class, -1}, nil
	}
	if x, ok := escapedChars[r]; ok {
		return char(x), nil
	}
	var x rune
	switch {
	case r == 'b' && inClass:
		x = '\b'
	case r == 'b' || r == 'B':
		return member{}, errors.New("word borders are not supported")
	case r >= '1' && r <= '9' || r == 'k':
		return member{}, errors.New("backreferences are not supported")
	case r == '0' && (p.at == len(p.text) || p.text[p.at] < '0' || p.text[p.at] > '9'):
		x = 0
	case r == 'x':
		x, err = p.hex(2)
	case r == 'u':
		x, err = p.unicode()
	case r == 'c' && p.at < len(p.text) && p.text[p.at] < utf8.RuneSelf && unicode.IsLetter(rune(p.text[p.at])):
		x = rune(p.text[p.at] % 32)
		p.at++
	case r == 'p' || r == 'P':
		return p.property(r)
	case r < utf8.RuneSelf && !unicode.IsLetter(r) && !unicode.IsDigit(r):
		x = r
	default:
		return member{}, fmt.Errorf(`the escape \%c is not supported`, r)
	}
	return char(x), err
}

// hex reads n hexadecimal digits.
func (p *ecmaParser) hex(n int) (rune, error) {
	if len(p.text)-p.at >= n {
		if x, err := strconv.ParseUint(p.text[p.at:p.at+n], 16, 32); err == nil {
			p.at += n
			return rune(x), nil
		}
	}
	return 0, fmt.Errorf("an escape without its %d hexadecimal digits", n)
}

// unicode reads the rest of an escape that begins with \u.
func (p *ecmaParser) unicode() (rune, error) {
	var x rune
	var err error
	if p.has("{") {
		end := strings.IndexByte(p.text[p.at:], '}')
		if end < 1 || end > 6 {
			return 0, errors.New(`\u{ without 1 to 6 hexadecimal digits and }`)
		}
		x, err = p.hex(end)
		p.at++
	} else if x, err = p.hex(4); err == nil && x >= 0xd800 && x < 0xdc00 && p.has(`\u`) {
		var low rune
		if low, err = p.hex(4); low >= 0xdc00 && low <= 0xdfff {
			x = 0x10000 + (x-0xd800)<<10 + low - 0xdc00
		} // otherwise x stays an unpaired surrogate
	}
	if err == nil && !utf8.ValidRune(x) {
		err = errors.New(`\u: found an unpaired surrogate or a number beyond 10ffff`)
	}
	return x, err
}

// property reads the rest of an escape that begins with \p or \P, whose letter is given.
func (p *ecmaParser) property(letter rune) (member, error) {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 || !p.has("{") {
		return member{}, errors.New(`\p without {}`)
	}
	name := p.text[p.at : p.at+end-1]
	p.at += end
	kind, value, ok := strings.Cut(name, "=")
	switch {
	case !ok:
		value = category(kind)
	case kind == "General_Category" || kind == "gc":
		value = category(value)
	case (kind == "Script" || kind == "sc") && unicode.Scripts[value] != nil:
	default:
		value = ""
	}
	if value == "" {
		return member{}, fmt.Errorf(`the property \p{%.40s} is not supported`, name)
	}
	return member{fmt.Sprintf(`\%c{%s}`, letter, value), -1}, nil
}

// category returns the short name of a general category; "" if there is none of that name.
func category(name string) string {
	if short, ok := unicode.CategoryAliases[name]; ok {
		name = short
	}
	if unicode.Categories[name] == nil {
		return ""
	}
	return name
}
