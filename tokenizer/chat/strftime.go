package chat

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats t as C's strftime does in the C locale, with the flags of
// glibc (%-d without padding, %_d with blanks, %0e with zeros, %^a in capitals).
// Zones print as nothing, as for Python's times without one. Unknown directives
// stay as they are.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		start := i
		i++
		var flag byte
		if i < len(format) && strings.IndexByte("-_0^#", format[i]) >= 0 {
			flag = format[i]
			i++
		}
		if i == len(format) {
			b.WriteString(format[start:])
			break
		}
		s, ok := directive(t, format[i], flag)
		if !ok {
			s = format[start : i+1]
		}
		b.WriteString(s)
	}
	return b.String()
}

// directive formats one directive.
func directive(t time.Time, c, flag byte) (string, bool) {
	number := func(n, width int, pad byte) (string, bool) {
		switch flag {
		case '-':
			width = 1
		case '_':
			pad = ' '
		case '0':
			pad = '0'
		}
		if pad == ' ' {
			return fmt.Sprintf("%*d", width, n), true
		}
		return fmt.Sprintf("%0*d", width, n), true
	}
	word := func(s string) (string, bool) {
		if flag == '^' || flag == '#' {
			s = strings.ToUpper(s)
		}
		return s, true
	}
	sunday, monday := int(t.Weekday()), (int(t.Weekday())+6)%7 // days since
	isoYear, isoWeek := t.ISOWeek()
	hour12 := (t.Hour()+11)%12 + 1
	switch c {
	case 'a':
		return word(t.Format("Mon"))
	case 'A':
		return word(t.Format("Monday"))
	case 'b', 'h':
		return word(t.Format("Jan"))
	case 'B':
		return word(t.Format("January"))
	case 'c':
		return strftime(t, "%a %b %e %H:%M:%S %Y"), true
	case 'C':
		return number(t.Year()/100, 2, '0')
	case 'd':
		return number(t.Day(), 2, '0')
	case 'D', 'x':
		return strftime(t, "%m/%d/%y"), true
	case 'e':
		return number(t.Day(), 2, ' ')
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'F':
		return strftime(t, "%Y-%m-%d"), true
	case 'g':
		return number(isoYear%100, 2, '0')
	case 'G':
		return number(isoYear, 4, '0')
	case 'H':
		return number(t.Hour(), 2, '0')
	case 'I':
		return number(hour12, 2, '0')
	case 'j':
		return number(t.YearDay(), 3, '0')
	case 'k':
		return number(t.Hour(), 2, ' ')
	case 'l':
		return number(hour12, 2, ' ')
	case 'm':
		return number(int(t.Month()), 2, '0')
	case 'M':
		return number(t.Minute(), 2, '0')
	case 'n':
		return "\n", true
	case 'p':
		if flag == '#' {
			return strings.ToLower(t.Format("PM")), true
		}
		return t.Format("PM"), true
	case 'P':
		return t.Format("pm"), true
	case 'r':
		return strftime(t, "%I:%M:%S %p"), true
	case 'R':
		return strftime(t, "%H:%M"), true
	case 's':
		return fmt.Sprint(t.Unix()), true
	case 'S':
		return number(t.Second(), 2, '0')
	case 't':
		return "\t", true
	case 'T', 'X':
		return strftime(t, "%H:%M:%S"), true
	case 'u':
		return number(monday+1, 1, '0')
	case 'U':
		return number((t.YearDay()+6-sunday)/7, 2, '0')
	case 'V':
		return number(isoWeek, 2, '0')
	case 'w':
		return number(sunday, 1, '0')
	case 'W':
		return number((t.YearDay()+6-monday)/7, 2, '0')
	case 'y':
		return number(t.Year()%100, 2, '0')
	case 'Y':
		return number(t.Year(), 1, '0')
	case 'z', 'Z':
		return "", true
	case '%':
		return "%", true
	}
	return "", false
}
