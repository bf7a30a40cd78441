package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// longestMessage is the longest line that is read, far more than any tool needs.
const longestMessage = 10 << 20

// stdio is a transport with one message per line on standard input and output. A line that is no message is answered with
// an error, and the connection goes on. A batch is read as its messages, and each gets a separate answer.
type stdio struct {
	in  io.Reader
	out io.Writer

	incoming chan jsonrpc.Message // closed at the end of the input
	closed   chan struct{}
	close    sync.Once
	mu       sync.Mutex // guards writes
}

func newStdio(in io.Reader, out io.Writer) *stdio {
	return &stdio{in: in, out: out, incoming: make(chan jsonrpc.Message), closed: make(chan struct{})}
}

// Connect implements mcp.Transport.
func (s *stdio) Connect(context.Context) (mcp.Connection, error) {
	go s.read() // ends with the input or the connection
	return s, nil
}

// SessionID implements mcp.Connection.
func (s *stdio) SessionID() string { return "" }

// Close implements mcp.Connection.
func (s *stdio) Close() error {
	s.close.Do(func() { close(s.closed) })
	return nil
}

// Read implements mcp.Connection.
func (s *stdio) Read(ctx context.Context) (jsonrpc.Message, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.closed:
		return nil, io.EOF
	case msg, open := <-s.incoming:
		if !open {
			return nil, io.EOF
		}
		return msg, nil
	}
}

// Write implements mcp.Connection.
func (s *stdio) Write(_ context.Context, msg jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	return s.write(text)
}

func (s *stdio) write(text []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.out.Write(append(text, '\n'))
	return err
}

func (s *stdio) read() {
	defer close(s.incoming)
	in := bufio.NewReaderSize(s.in, 64<<10)
	for {
		text, whole, err := messageOf(in)
		text = bytes.TrimSpace(text)
		switch {
		case !whole:
			s.refuse(nil, jsonrpc.CodeInvalidRequest, "the line is longer than 10 MB")
		case len(text) > 0:
			if !s.take(text) {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// messageOf reads a line. whole is false if it is too long: then it has been dropped.
func messageOf(in *bufio.Reader) (text []byte, whole bool, err error) {
	whole = true
	for {
		part, err := in.ReadSlice('\n')
		if whole = whole && len(text)+len(part) <= longestMessage; whole {
			text = append(text, part...)
		} else {
			text = nil
		}
		if err != bufio.ErrBufferFull {
			return text, whole, err
		}
	}
}

// take passes on the messages of a line. It reports whether the connection is still open.
func (s *stdio) take(text []byte) bool {
	if !json.Valid(text) {
		s.refuse(nil, jsonrpc.CodeParseError, "the line is no JSON")
		return true
	}
	all := []json.RawMessage{text}
	if text[0] == '[' {
		if _ = json.Unmarshal(text, &all); len(all) == 0 {
			s.refuse(nil, jsonrpc.CodeInvalidRequest, "the batch is empty")
		}
	}
	for _, one := range all {
		msg, err := jsonrpc.DecodeMessage(one)
		if err != nil {
			s.refuse(one, jsonrpc.CodeInvalidRequest, "no message of JSON-RPC 2.0")
			continue
		}
		select {
		case s.incoming <- msg:
		case <-s.closed:
			return false
		}
	}
	return true
}

// refuse answers a line that is no message, with its id if it has one.
func (s *stdio) refuse(id json.RawMessage, code int, why string) {
	var request struct {
		ID any `json:"id"`
	}
	_ = json.Unmarshal(id, &request)
	switch request.ID.(type) {
	case string, float64:
	default:
		request.ID = nil
	}
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": request.ID, "error": map[string]any{"code": code, "message": why}})
	if err == nil {
		_ = s.write(text) // the reader detects that writes fail
	}
}
