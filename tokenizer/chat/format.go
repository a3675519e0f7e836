package chat

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// spec is a parsed format specification: how one value is to be laid out.
type spec struct {
	fill      string
	align     byte // one of < > ^ =, or 0
	sign      byte // one of + - blank, or 0
	alternate bool // '#'
	zero      bool // numbers are filled after their sign
	width     int
	group     string // "," or "_", or ""
	precision int    // -1 if absent
	verb      byte   // 0 if absent
}

// percent is Python's text % values.
func (r *run) percent(format string, values any) string {
	var elems []any
	single := true
	if t, ok := values.(tuple); ok {
		elems, single = t.elems, false
	}
	named, _ := values.(*Object)
	next := 0
	arg := func() any {
		if single && next == 0 {
			next++
			return values
		}
		if next >= len(elems) {
			failf("%%: not enough values for the format")
		}
		next++
		return elems[next-1]
	}
	var b strings.Builder
	usedNames := false
	for i := 0; i < len(format); {
		if format[i] != '%' {
			j := strings.IndexByte(format[i:], '%')
			if j < 0 {
				j = len(format) - i
			}
			b.WriteString(format[i : i+j])
			r.alloc(j)
			i += j
			continue
		}
		i++
		at := func() byte {
			if i >= len(format) {
				failf("%%: incomplete format")
			}
			return format[i]
		}
		var value any
		hasValue := false
		if at() == '%' {
			b.WriteByte('%')
			i++
			continue
		}
		if at() == '(' {
			depth, start := 1, i+1
			for depth > 0 {
				i++
				switch at() {
				case '(':
					depth++
				case ')':
					depth--
				}
			}
			if named == nil {
				failf("%%: named values need an object, found '%s'", typeName(values))
			}
			v, ok := named.Get(format[start:i])
			if !ok {
				failf("%%: no value named %q", format[start:i])
			}
			i++
			value, hasValue, usedNames = v, true, true
		}
		sp := spec{fill: " ", align: '>', precision: -1}
		for flags := true; flags; {
			switch at() {
			case '-':
				sp.align = '<'
			case '+':
				sp.sign = '+'
			case ' ':
				if sp.sign == 0 {
					sp.sign = ' '
				}
			case '#':
				sp.alternate = true
			case '0':
				sp.fill = "0"
			default:
				flags = false
				continue
			}
			i++
		}
		size := func() int {
			if at() == '*' {
				i++
				return intArg(arg(), "% width")
			}
			start := i
			for isDecimal(at()) {
				i++
			}
			if start == i {
				return 0
			}
			return r.size(format[start:i])
		}
		if sp.width = size(); sp.width < 0 {
			sp.align, sp.width = '<', -sp.width
		}
		if at() == '.' {
			i++
			sp.precision = max(size(), 0)
		}
		for strings.IndexByte("hlL", at()) >= 0 {
			i++
		}
		sp.verb = at()
		i++
		if !hasValue {
			value = arg()
		}
		if sp.fill == "0" {
			if sp.align == '<' || strings.IndexByte("srac", sp.verb) >= 0 {
				sp.fill = " "
			} else {
				sp.align = '='
			}
		}
		s := r.percentVerb(sp, value)
		r.alloc(len(s))
		b.WriteString(s)
	}
	unused := next < len(elems)
	if single {
		unused = next == 0 && named == nil && !usedNames
		switch values.(type) {
		case []any, *rangeValue, *undefined:
			unused = false // Python takes what can be indexed for a mapping here
		}
	}
	if unused {
		failf("%%: not all values were used by the format")
	}
	return b.String()
}

// percentVerb formats one value of a % format.
func (r *run) percentVerb(sp spec, v any) string {
	switch sp.verb {
	case 's', 'r', 'a':
		s := ""
		switch {
		case sp.verb == 's':
			s = r.str(v)
		case sp.verb == 'r':
			s = r.repr(v)
		default:
			s = asciiRepr(r.repr(v))
		}
		return r.layText(sp, s)
	case 'c':
		sp.precision = -1
		if s, ok := asString(v); ok && utf8.RuneCountInString(s) == 1 {
			return r.layText(sp, s)
		}
		c := intArg(v, "%c")
		if c < 0 || c > utf8.MaxRune {
			failf("%%c: %d is no character", c)
		}
		return r.layText(sp, string(rune(c)))
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if !isNumber(v) {
			failf("%%%c: found '%s', expected a number", sp.verb, typeName(v))
		}
		if f, ok := v.(float64); ok {
			if sp.verb == 'x' || sp.verb == 'X' || sp.verb == 'o' || math.IsNaN(f) || math.IsInf(f, 0) {
				failf("%%%c: found a float, expected an integer", sp.verb)
			}
			v = truncate(f)
		}
		if sp.verb == 'i' || sp.verb == 'u' {
			sp.verb = 'd'
		}
		if sp.precision > 0 {
			// precision is the least number of digits
			digits, neg := digitsOf(v, sp.verb)
			digits = r.pad(digits, sp.precision, "0", -1)
			sp.precision = -1
			return r.layNumber(sp, neg, prefixOf(sp), digits)
		}
		sp.precision = -1
		return r.layInt(sp, v)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if !isNumber(v) {
			failf("%%%c: found '%s', expected a number", sp.verb, typeName(v))
		}
		return r.layFloat(sp, toFloat(v))
	}
	failf("%%: unsupported format character %q", sp.verb)
	return ""
}

// size reads a width or precision.
func (r *run) size(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil || n > r.limits.Memory {
		limitf("format width or precision %.20s is too large", digits)
	}
	return n
}

func asciiRepr(s string) string {
	var b strings.Builder
	for _, c := range s {
		if c < utf8.RuneSelf {
			b.WriteRune(c)
		} else {
			b.WriteString(escapeRune(c))
		}
	}
	return b.String()
}

// layText pads and cuts text.
func (r *run) layText(sp spec, s string) string {
	if sp.precision >= 0 {
		s = s[:runeOffset(s, sp.precision)]
	}
	switch sp.align {
	case '>', '=':
		return r.pad(s, sp.width, sp.fill, -1)
	case '^':
		return r.centered(s, sp.width, sp.fill)
	}
	return r.pad(s, sp.width, sp.fill, 1)
}

// centered pads both sides, the odd one on the right.
func (r *run) centered(s string, width int, fill string) string {
	n := width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	return r.text(r.repeatText(fill, n/2) + s + r.repeatText(fill, n-n/2))
}

// digitsOf are an integer's digits without sign in the verb's base.
func digitsOf(v any, verb byte) (digits string, neg bool) {
	base := map[byte]int{'x': 16, 'X': 16, 'o': 8, 'b': 2}[verb]
	if base == 0 {
		s := formatInt(toIntValue(v))
		return strings.TrimPrefix(s, "-"), s[0] == '-'
	}
	b := toBig(v)
	digits = new(big.Int).Abs(b).Text(base)
	if verb == 'X' {
		digits = strings.ToUpper(digits)
	}
	return digits, b.Sign() < 0
}

// toIntValue makes booleans integers.
func toIntValue(v any) any {
	if i, ok := toInt64(v); ok {
		return i
	}
	return v
}

func prefixOf(sp spec) string {
	if !sp.alternate || strings.IndexByte("xXob", sp.verb) < 0 {
		return ""
	}
	return "0" + string(sp.verb)
}

func (r *run) layInt(sp spec, v any) string {
	digits, neg := digitsOf(v, sp.verb)
	return r.layNumber(sp, neg, prefixOf(sp), digits)
}

func (r *run) layFloat(sp spec, f float64) string {
	if sp.alternate {
		unsupportedf("format flag '#' for floats")
	}
	neg := math.Signbit(f) && !math.IsNaN(f)
	f = math.Abs(f)
	verb, prec, percent := sp.verb, sp.precision, ""
	if verb == '%' {
		f *= 100
		verb, percent = 'f', "%"
	}
	lowVerb := verb | 0x20 // lower case
	if prec < 0 && verb != 0 {
		prec = 6
	}
	r.alloc(max(prec, 0))
	var s string
	switch {
	case math.IsNaN(f):
		s = "nan"
	case math.IsInf(f, 0):
		s = "inf"
	case verb == 0 && prec < 0:
		s = formatFloat(f)
	case verb == 0: // as g, but with at least one digit after the point
		s = strconv.FormatFloat(f, 'g', max(prec, 1), 64)
		if e := exponent(f, max(prec, 1)); e >= max(prec, 1)-1 && e < max(prec, 1) && !strings.Contains(s, "e") {
			s = strconv.FormatFloat(f, 'e', max(prec, 1)-1, 64)
			s = trimExpZeros(s)
		} else if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
	case lowVerb == 'g' || lowVerb == 'n':
		s = strconv.FormatFloat(f, 'g', max(prec, 1), 64)
	default:
		s = strconv.FormatFloat(f, lowVerb, prec, 64)
	}
	if 'A' <= verb && verb <= 'Z' {
		s = strings.ToUpper(s)
	}
	return r.layNumber(sp, neg, "", s+percent)
}

// exponent is the decimal exponent of f rounded to prec digits.
func exponent(f float64, prec int) int {
	s := strconv.FormatFloat(f, 'e', prec-1, 64)
	e, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	return e
}

// trimExpZeros drops zeros at the end of a mantissa.
func trimExpZeros(s string) string {
	mantissa, exp, _ := strings.Cut(s, "e")
	if strings.Contains(mantissa, ".") {
		mantissa = strings.TrimRight(strings.TrimRight(mantissa, "0"), ".")
	}
	return mantissa + "e" + exp
}

// layNumber adds grouping, sign, prefix and padding to digits.
func (r *run) layNumber(sp spec, neg bool, prefix, digits string) string {
	sign := ""
	switch {
	case neg:
		sign = "-"
	case sp.sign == '+' || sp.sign == ' ':
		sign = string(sp.sign)
	}
	whole := len(digits)
	for i := range len(digits) {
		if !isHex(digits[i]) || digits[i]|0x20 == 'e' && sp.verb|0x20 != 'x' {
			whole = i
			break
		}
	}
	head, tail := digits[:whole], digits[whole:]
	if sp.group != "" {
		every := 3
		if strings.IndexByte("xXob", sp.verb) >= 0 && sp.verb != 0 {
			every = 4
		}
		width := 0
		if sp.align == '=' && sp.fill == "0" {
			width = sp.width - len(sign) - len(prefix) - len(tail)
		}
		head = r.grouped(head, sp.group, every, width)
	}
	lead := sign + prefix
	body := head + tail
	n := sp.width - utf8.RuneCountInString(lead) - utf8.RuneCountInString(body)
	if n <= 0 {
		return lead + body
	}
	switch sp.align {
	case '=':
		return r.text(lead + r.repeatText(sp.fill, n) + body)
	case '<':
		return r.text(lead + body + r.repeatText(sp.fill, n))
	case '^':
		return r.centered(lead+body, sp.width, sp.fill)
	}
	return r.text(r.repeatText(sp.fill, n) + lead + body)
}

func isHex(c byte) bool {
	return isDecimal(c) || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// grouped puts sep between every so many digits and zeros before them up to
// width, which the separators count for.
func (r *run) grouped(digits, sep string, every, width int) string {
	r.alloc(max(2*len(digits), width))
	var groups []string
	for total := 0; ; total += len(sep) {
		n := min(every, len(digits))
		part := digits[len(digits)-n:]
		digits = digits[:len(digits)-n]
		if want := min(every, max(width-total, 1)); n < want && digits == "" {
			part = strings.Repeat("0", want-n) + part
		}
		groups = append(groups, part)
		total += len(part)
		if digits == "" && total >= width {
			break
		}
	}
	var b strings.Builder
	for i := len(groups) - 1; i >= 0; i-- {
		b.WriteString(groups[i])
		if i > 0 {
			b.WriteString(sep)
		}
	}
	return b.String()
}

// format is str.format: fields in braces, looked up in pos and named.
func (r *run) format(text string, pos []any, named *Object) string {
	auto := 0 // next automatic field; -1 once fields are numbered by hand
	return r.formatFields(text, pos, named, &auto, 2)
}

func (r *run) formatFields(text string, pos []any, named *Object, auto *int, levels int) string {
	if levels == 0 {
		failf("format: fields nested too deeply")
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		j := strings.IndexAny(text[i:], "{}")
		if j < 0 {
			j = len(text) - i
		}
		r.alloc(j)
		b.WriteString(text[i : i+j])
		if i += j; i == len(text) {
			break
		}
		c := text[i]
		i++
		if i < len(text) && text[i] == c {
			b.WriteByte(c)
			i++
			continue
		}
		if c == '}' {
			failf("format: single '}' in the text")
		}
		start, depth := i, 1
		for ; i < len(text) && depth > 0; i++ {
			switch text[i] {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		if depth > 0 {
			failf("format: '{' without its '}'")
		}
		s := r.formatField(text[start:i-1], pos, named, auto, levels)
		r.alloc(len(s))
		b.WriteString(s)
	}
	return b.String()
}

// formatField formats one field: name, then "!" and a conversion, then ":" and a
// specification, which may have fields itself.
func (r *run) formatField(field string, pos []any, named *Object, auto *int, levels int) string {
	name, rest := field, ""
	bracket := false
	for i := range len(field) {
		c := field[i]
		bracket = c == '[' || bracket && c != ']'
		if (c == '!' || c == ':') && !bracket {
			name, rest = field[:i], field[i:]
			break
		}
	}
	v := r.formatValue(name, pos, named, auto)
	if strings.HasPrefix(rest, "!") {
		if len(rest) < 2 || len(rest) > 2 && rest[2] != ':' {
			failf("format: bad conversion in field %q", field)
		}
		switch rest[1] {
		case 's':
			v = r.str(v)
		case 'r':
			v = r.repr(v)
		case 'a':
			v = asciiRepr(r.repr(v))
		default:
			failf("format: unknown conversion %q", rest[1])
		}
		rest = rest[2:]
	}
	return r.formatSpec(v, r.formatFields(strings.TrimPrefix(rest, ":"), pos, named, auto, levels-1+boolInt(rest == "")))
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// formatValue follows a field's name: a number, a name or nothing, then
// ".attribute" and "[key]" parts.
func (r *run) formatValue(name string, pos []any, named *Object, auto *int) any {
	switch {
	case name == "":
		if *auto < 0 {
			failf("format: automatic field after a numbered one")
		}
		name = strconv.Itoa(*auto)
		*auto++
	case strings.Trim(name, "0123456789") == "":
		if *auto > 0 {
			failf("format: numbered field after an automatic one")
		}
		*auto = -1
	}
	end := strings.IndexAny(name, ".[")
	if end < 0 {
		end = len(name)
	}
	first, rest := name[:end], name[end:]
	var v any
	if n, err := strconv.Atoi(first); err == nil {
		if n < 0 || n >= len(pos) {
			failf("format: no value at position %d", n)
		}
		v = pos[n]
	} else {
		var ok bool
		if v, ok = named.Get(first); !ok {
			failf("format: no value named %q", first)
		}
	}
	for rest != "" {
		if rest[0] == '.' {
			rest = rest[1:]
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			if end == 0 {
				failf("format: empty attribute in field %q", name)
			}
			v = r.dot(v, rest[:end])
			rest = rest[end:]
			continue
		}
		key, after, ok := strings.Cut(rest[1:], "]")
		if !ok || rest[0] != '[' || key == "" {
			failf("format: bad key in field %q", name)
		}
		if n, err := strconv.ParseInt(key, 10, 64); err == nil && key[0] != '-' && key[0] != '+' {
			v = r.index(v, n)
		} else {
			v = r.index(v, key)
		}
		rest = after
	}
	return v
}

// formatSpec is Python's format(v, text).
func (r *run) formatSpec(v any, text string) string {
	if text == "" {
		return r.str(v)
	}
	_, isText := asString(v)
	if !isText && !isNumber(v) {
		failf("format: specification %q does not apply to '%s'", text, typeName(v))
	}
	sp := r.parseSpec(text)
	if s, ok := asString(v); ok {
		if sp.verb != 0 && sp.verb != 's' || sp.align == '=' || sp.sign != 0 || sp.group != "" || sp.alternate {
			failf("format: specification %q does not apply to a string", text)
		}
		return r.layText(sp, s)
	}
	if sp.align == 0 {
		sp.align = '>'
		if sp.zero {
			sp.align = '='
		}
	}
	_, isFloat := v.(float64)
	switch {
	case strings.IndexByte("eEfFgG%", sp.verb) >= 0 && sp.verb != 0, isFloat && (sp.verb == 0 || sp.verb == 'n'):
		return r.layFloat(sp, toFloat(v))
	case isFloat:
		failf("format: specification %q does not apply to a float", text)
	}
	if sp.precision >= 0 {
		failf("format: precision in %q does not apply to an integer", text)
	}
	switch sp.verb {
	case 0, 'd', 'n', 'x', 'X', 'o', 'b':
		return r.layInt(sp, v)
	case 'c':
		if sp.sign != 0 || sp.alternate {
			failf("format: specification %q does not apply to a character", text)
		}
		return r.percentVerb(sp, v)
	}
	failf("format: specification %q does not apply to an integer", text)
	return ""
}

func (r *run) parseSpec(text string) spec {
	sp := spec{fill: " ", precision: -1}
	s := text
	isAlign := func(s string) bool { return s != "" && strings.IndexByte("<>^=", s[0]) >= 0 }
	_, n := utf8.DecodeRuneInString(s)
	hasFill := false
	switch {
	case isAlign(s[n:]):
		sp.fill, sp.align, s = s[:n], s[n], s[n+1:]
		hasFill = true
	case isAlign(s):
		sp.align, s = s[0], s[1:]
	}
	take := func(set string) byte {
		if s == "" || strings.IndexByte(set, s[0]) < 0 {
			return 0
		}
		c := s[0]
		s = s[1:]
		return c
	}
	digits := func() string {
		n := 0
		for n < len(s) && isDecimal(s[n]) {
			n++
		}
		d := s[:n]
		s = s[n:]
		return d
	}
	sp.sign = take("+- ")
	take("z")
	sp.alternate = take("#") != 0
	if strings.HasPrefix(s, "0") && !hasFill {
		sp.fill, sp.zero = "0", true
	}
	if d := digits(); d != "" {
		sp.width = r.size(d)
	}
	if c := take(",_"); c != 0 {
		sp.group = string(c)
	}
	if take(".") != 0 {
		d := digits()
		if d == "" {
			failf("format: missing precision in %q", text)
		}
		sp.precision = r.size(d)
	}
	sp.verb = take("sdnxXobceEfFgG%")
	if s != "" || sp.group != "" && strings.IndexByte("cns", sp.verb) >= 0 || sp.group == "," && strings.IndexByte("xXob", sp.verb) >= 0 {
		failf("format: bad specification %q", text)
	}
	return sp
}
