package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span that a file writes as a string with a unit: "30s",
// "1h30m", "250ms". A bare number is refused, because nobody can say in what
// unit it was meant.
type Duration time.Duration

// D is the value as the standard library wants it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String writes the duration without the zero parts that time.Duration adds.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText is String, for JSON.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what String writes and everything else that
// time.ParseDuration takes.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := parseDuration(string(b))
	if err == nil {
		*d = v
	}
	return err
}

func parseDuration(s string) (Duration, error) {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return 0, fmt.Errorf("%s has no unit; write %q", clip(s), s+"s")
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%s is not a duration; write it like \"30s\", \"250ms\" or \"1h30m\"", clipQuote(s))
	}
	if v < 0 {
		return 0, fmt.Errorf("%s is negative", clipQuote(s))
	}
	return Duration(v), nil
}

// Size is an amount of memory in bytes that a file writes as a string with a
// unit: "24GiB", "512MiB", "1.5GB". A bare number is refused. Where a key
// allows it, Auto stands for "by the rule in the key's documentation".
type Size int64

// Auto is the size written "auto".
const Auto Size = -1

var sizeUnits = []struct {
	name  string
	bytes int64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
}

// Bytes is the size as a plain number.
func (s Size) Bytes() int64 { return int64(s) }

// String writes the size in the largest binary unit that loses nothing.
func (s Size) String() string {
	if s == Auto {
		return "auto"
	}
	for _, u := range sizeUnits[:4] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

// Human writes the size for people, to three digits: "15.2GiB", "16MiB".
func (s Size) Human() string { return s.people(math.Round) }

// Enough is Human rounded up, for a size that somebody is told to set: what it names is not less than s.
func (s Size) Enough() string { return s.people(math.Ceil) }

func (s Size) people(round func(float64) float64) string {
	for _, u := range sizeUnits[:4] {
		v := float64(s) / float64(u.bytes)
		if v < 1 {
			continue
		}
		scale := 1.0
		for d := v; d < 100; d *= 10 {
			scale *= 10
		}
		return strconv.FormatFloat(round(v*scale)/scale, 'f', -1, 64) + u.name
	}
	return s.String()
}

// MarshalText is String, for JSON.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a number and its unit.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := parseSize(string(b))
	if err == nil {
		*s = v
	}
	return err
}

var errSizeForm = errors.New(`write it like "24GiB", "512MiB" or "100kB"`)

func parseSize(text string) (Size, error) {
	if text == "auto" {
		return Auto, nil
	}
	for _, u := range sizeUnits {
		num, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		num = strings.TrimRight(num, " ")
		if n, err := strconv.ParseInt(num, 10, 64); err == nil {
			if n < 0 {
				return 0, fmt.Errorf("%s is negative", clipQuote(text))
			}
			if n > math.MaxInt64/u.bytes {
				return 0, fmt.Errorf("%s is more than any memory", clipQuote(text))
			}
			return Size(n * u.bytes), nil
		}
		f, err := strconv.ParseFloat(num, 64)
		if err != nil || f < 0 || f != f || strings.ContainsAny(num, "eExXpP_iInN+") {
			break
		}
		if f*float64(u.bytes) >= math.MaxInt64/2 {
			return 0, fmt.Errorf("%s is more than any memory", clipQuote(text))
		}
		return Size(f * float64(u.bytes)), nil
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, fmt.Errorf("%s has no unit; write %q or %q", clip(text), text+"MiB", text+"GiB")
	}
	return 0, fmt.Errorf("%s is not a size; %w", clipQuote(text), errSizeForm)
}

// clip shortens what a message repeats from a file.
func clip(s string) string {
	const most = 60
	r := []rune(s)
	if len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}

func clipQuote(s string) string { return strconv.Quote(clip(s)) }
