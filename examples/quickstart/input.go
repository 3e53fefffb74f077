package main

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

//go:embed text.txt
var text string

// laps is how often the embedded text is sent.
const laps = 1000

// maxLine is the library's limit of a record, in bytes.
const maxLine = 16 << 20

// input returns the lines to send.
func input(args []string) ([][]byte, error) {
	switch {
	case len(args) > 1:
		return nil, errors.New("want one file, or - for standard input, or nothing")
	case len(args) == 0:
		return readLines(strings.NewReader(strings.Repeat(text, laps)))
	case args[0] == "-":
		return readLines(os.Stdin)
	}
	f, err := os.Open(args[0])
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := readLines(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	return lines, nil
}

// readLines splits at line feeds only: a line may hold any other byte, and
// nothing. What follows the last line feed is a line unless it is empty.
func readLines(r io.Reader) ([][]byte, error) {
	in := bufio.NewReaderSize(r, 1<<20)
	var lines [][]byte
	for {
		line, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, err
		}
		if err == io.EOF && len(line) == 0 {
			return lines, nil
		}
		if err == nil {
			line = line[:len(line)-1]
		}
		if len(line) > maxLine {
			return nil, fmt.Errorf("line %d has %d bytes: a record holds at most %d", len(lines)+1, len(line), maxLine)
		}
		lines = append(lines, line)
		if err == io.EOF {
			return lines, nil
		}
	}
}
