// A client of Duetime's HTTP API with nothing but the standard library. Run the story at the end:
//
//	go run duetime.go http://127.0.0.1:7777
package main

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"time"
)

// Lease is one consumer's exclusive hold on a job; send it back as it came.
type Lease struct {
	ID      string `json:"id"`
	Born    int64  `json:"born"`
	Attempt int    `json:"attempt"`
}

type Delivery struct {
	Queue      string          `json:"queue"`
	Lease      Lease           `json:"lease"`
	DueAt      int64           `json:"due_at"`
	LeaseUntil int64           `json:"lease_until"`
	Body       json.RawMessage `json:"body"`
}

type Moved struct {
	Event string `json:"event"`
	ID    string `json:"id"`
	DueAt int64  `json:"due_at"`
}

// Error is what the server refused: Code is for programs, Detail for people.
type Error struct {
	Code   string `json:"code"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func (e *Error) Error() string { return e.Code + ": " + e.Detail }

type fields = map[string]any

type Client struct {
	URL, Namespace, Token string
	HTTP                  http.Client
}

type Queue struct {
	client *Client
	path   string
}

func (c *Client) Queue(name string) Queue {
	return Queue{c, "/v1/queues/" + url.PathEscape(c.Namespace) + "/" + url.PathEscape(name)}
}

// send repeats a request up to five times if repeat says that this is safe.
func (c *Client) send(method, path string, message any, repeat bool, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	for attempt := 1; ; attempt++ {
		err = c.once(method, path, body, answer)
		var refused *Error
		again := err != nil && (!errors.As(err, &refused) || refused.Status == 429 || refused.Status > 501)
		if !again || !repeat || attempt == 5 {
			return err
		}
		time.Sleep(100 * time.Millisecond << attempt)
	}
}

func (c *Client) once(method, path string, body []byte, answer any) error {
	if method != http.MethodPost {
		body = nil
	}
	request, err := http.NewRequest(method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("content-type", "application/json")
	if c.Token != "" {
		request.Header.Set("authorization", "Bearer "+c.Token)
	}
	reply, err := c.HTTP.Do(request)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	decoder := json.NewDecoder(reply.Body)
	if reply.StatusCode < 300 {
		return decoder.Decode(answer)
	}
	refused := Error{Status: reply.StatusCode}
	if err := decoder.Decode(&refused); err != nil {
		return err
	}
	return &refused
}

// Later adds a job that is due after delay ("10m"; "0s" for now). Repeating an id keeps the first job.
func (q Queue) Later(delay, id string, body any) (Moved, error) {
	if id == "" {
		random := make([]byte, 16)
		if _, err := rand.Read(random); err != nil {
			return Moved{}, err
		}
		id = hex.EncodeToString(random)
	}
	var answer struct{ Moved Moved }
	err := q.client.send("POST", q.path+"/jobs", fields{"id": id, "delay": delay, "body": body}, true, &answer)
	return answer.Moved, err
}

// Reserve leases a job; it waits for one to fall due. Nil if none came in time.
func (q Queue) Reserve(wait, ttr string) (*Delivery, error) {
	var answer struct{ Deliveries []Delivery }
	err := q.client.send("POST", q.path+"/reserve", fields{"wait": wait, "ttr": ttr}, false, &answer)
	if err != nil || len(answer.Deliveries) == 0 {
		return nil, err
	}
	return &answer.Deliveries[0], nil
}

func (q Queue) Ack(lease Lease) error {
	return q.client.send("POST", q.path+"/ack", fields{"lease": lease}, true, &fields{})
}

// Release gives a job back, to be delivered again after delay.
func (q Queue) Release(lease Lease, delay, reason string) error {
	return q.client.send("POST", q.path+"/release", fields{"lease": lease, "delay": delay, "error": reason}, false, &fields{})
}

func (q Queue) Cancel(id string) (Moved, error) {
	var answer struct{ Moved Moved }
	err := q.client.send("DELETE", q.path+"/jobs/"+url.PathEscape(id), nil, false, &answer)
	return answer.Moved, err
}

// Size is the number of jobs in all states.
func (q Queue) Size() (int, error) {
	var answer struct {
		Counts struct{ Delayed, Ready, Leased, Dead int }
	}
	err := q.client.send("GET", q.path, nil, true, &answer)
	return answer.Counts.Delayed + answer.Counts.Ready + answer.Counts.Leased + answer.Counts.Dead, err
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func main() {
	client := &Client{URL: os.Args[1], Namespace: "default", Token: os.Getenv("DUETIME_TOKEN")}
	mail := client.Queue("go")
	fmt.Println("push", must(mail.Later("100ms", "welcome-ann", fields{"to": "ann"})).Event)
	fmt.Println("push again", must(mail.Later("100ms", "welcome-ann", fields{"to": "ann"})).Event)
	must(mail.Later("1h", "welcome-bob", fields{"to": "bob"}))
	fmt.Println("cancel", must(mail.Cancel("welcome-bob")).Event)
	var refused *Error
	if _, err := mail.Cancel("welcome-bob"); errors.As(err, &refused) {
		fmt.Println("cancel again", refused.Code)
	}
	for job := must(mail.Reserve("30s", "60s")); job != nil; job = must(mail.Reserve("200ms", "60s")) {
		when := "due"
		if time.Now().UnixMilli() < job.DueAt {
			when = "early"
		}
		fmt.Println("work", job.Lease.ID, "attempt", job.Lease.Attempt, string(job.Body), when)
		if job.Lease.Attempt == 1 {
			must(0, mail.Release(job.Lease, "50ms", "the mail server is busy"))
		} else {
			must(0, mail.Ack(job.Lease))
		}
	}
	fmt.Println("left", must(mail.Size()))
}
