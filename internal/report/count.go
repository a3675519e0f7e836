package report

import "fmt"

// Count formats a number of things whose plural ends in s: 1 question, 2 questions.
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
