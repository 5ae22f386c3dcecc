//! Conversations on the page as they go on: other answers, other questions, two at once, two tabs.

use fm_engine::schedule::Update;
use fm_text::Channel;
use serde_json::{Value, json};

use crate::{
    browser::{Browser, ENTER, ESCAPE, Jobs},
    harness::until,
    page_in_browser::{IDLE, answer, end, page_of_jobs, say, take},
};

/// Asks in the conversation that is shown, and has it answered.
fn talk(browser: &Browser, jobs: &Jobs, question: &str, text: &str) {
    browser.run("document.querySelector('#prompt').focus()");
    browser.press(&format!("{question}{ENTER}"));
    answer(jobs, text);
    browser.until(IDLE);
}

/// Clicks the first button below an element that says this.
fn click(browser: &Browser, within: &str, label: &str) {
    browser.run(&format!(
        "[...document.querySelectorAll('{within} button')].find(b => b.textContent === '{label}').click()"
    ));
}

/// Questions and answers that are shown.
fn shown(browser: &Browser) -> Value {
    browser.run("return [...document.querySelectorAll('.question .text, .answer .markdown')].map(e => e.textContent)")
}

/// Questions and answers of the latest conversation, as the browser keeps them.
fn kept(browser: &Browser) -> Value {
    browser.run(
        "const [{ id }] = JSON.parse(localStorage['flash-moe.chats']); \
         return JSON.parse(localStorage[`flash-moe.chat.${id}`]).messages.map(m => m.content)",
    )
}

#[test]
fn what_was_there_is_there_again_if_no_answer_comes_in_its_place() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    talk(&browser, &jobs, "one", "First.");
    talk(&browser, &jobs, "two", "Second.");
    let all = json!(["one", "First.", "two", "Second."]);

    click(&browser, ".answer", "Again");
    let job = take(&jobs);
    assert_eq!(shown(&browser), json!(["one", ""]));
    assert_eq!(kept(&browser), all, "nothing has come yet");
    assert_eq!(browser.run("return document.activeElement.id"), "prompt");
    drop(job);
    browser.until("document.querySelector('.trouble:not([hidden])')");
    assert_eq!((shown(&browser), kept(&browser)), (all.clone(), all.clone()));
    // It is said where the answer would have been.
    assert!(!browser.text(".answer .trouble").is_empty());

    // Whoever stops it before it says something has it back, too.
    click(&browser, ".answer", "Again");
    let _stopped = take(&jobs);
    browser.press(&ESCAPE.to_string());
    browser.until(IDLE);
    assert_eq!((shown(&browser), kept(&browser)), (all.clone(), all.clone()));
    assert_eq!(browser.run("return document.querySelector('.trouble:not([hidden])')"), Value::Null);

    // What somebody wrote in the place of a question can be sent once more, or given up.
    click(&browser, ".question", "Edit");
    browser.press(&format!("!{ENTER}"));
    drop(take(&jobs));
    browser.until("document.querySelector('.question textarea')?.value === 'one!'");
    assert_eq!(kept(&browser), all);
    browser.press(&ESCAPE.to_string());
    assert_eq!(browser.run("return document.activeElement.textContent"), "Edit");
    assert_eq!(shown(&browser), all);

    // An answer that comes takes the place of what was there.
    click(&browser, ".answer", "Again");
    answer(&jobs, "Another.");
    browser.until(IDLE);
    let other = json!(["one", "Another."]);
    assert_eq!((shown(&browser), kept(&browser)), (other.clone(), other));
}

#[test]
fn a_title_stays_when_its_conversation_goes_on() {
    let Some((server, browser, jobs)) = page_of_jobs() else { return };
    talk(&browser, &jobs, "one", "First.");
    browser.click("#new-chat");
    talk(&browser, &jobs, "two", "Second.");
    click(&browser, "#chat-list", "Rename");
    browser.press(&format!("my title{ENTER}"));
    assert_eq!(browser.text("#chat-list .title"), "my title");
    assert_eq!(browser.run("return document.activeElement.textContent"), "my title");
    talk(&browser, &jobs, "more", "Third.");
    assert_eq!(browser.text("#chat-list .title"), "my title");
    // A click elsewhere ends the writing of a title, and must find what it was meant for.
    browser.run("window.other = [...document.querySelectorAll('#chat-list .title')].at(-1)");
    click(&browser, "#chat-list", "Rename");
    browser.run("document.activeElement.value = 'best title'; document.activeElement.blur()");
    assert_eq!(browser.text("#chat-list .title"), "best title");
    assert_eq!(browser.run("return window.other.isConnected"), true);
    browser.run("window.other.click()");
    assert_eq!(shown(&browser), json!(["one", "First."]));
    browser.open(server.at);
    browser.until("document.querySelector('#chat-list .title')?.textContent === 'best title'");
}

#[test]
fn two_conversations_are_answered_at_once() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("one{ENTER}"));
    let mut one = take(&jobs);
    say(&mut one, Channel::Answer, "The");
    browser.click("#new-chat");
    assert_eq!(browser.text("#send"), "Send", "nothing is stopped here");
    browser.press(&format!("two{ENTER}"));
    let mut two = take(&jobs);
    say(&mut two, Channel::Answer, "Second");
    browser.until("document.querySelector('.answer .markdown')?.textContent === 'Second'");
    browser.press(&ESCAPE.to_string());
    until(|| (two.listener)(Update::Waiting).is_break());
    browser.until(IDLE);
    assert!(browser.text(".answer .facts").contains("stopped"));
    // The other one goes on, and is shown by whoever opens it.
    browser.run("[...document.querySelectorAll('#chat-list .title')].find(t => t.textContent === 'one').click()");
    browser.until("document.querySelector('.answer .markdown')?.textContent === 'The'");
    assert_eq!(browser.text("#send"), "Stop");
    browser.click("#new-chat");
    say(&mut one, Channel::Answer, " first.");
    end(&mut one);
    browser.until("Object.values(localStorage).some(text => text.includes('The first.'))");
    assert_eq!(kept(&browser), json!(["one", "The first."]), "it is the latest");
    assert_eq!(shown(&browser), json!([]), "it ended where it belongs");
}

#[test]
fn an_answer_whose_page_is_left_was_stopped() {
    let Some((server, browser, jobs)) = page_of_jobs() else { return };
    browser.press(&format!("one{ENTER}"));
    let mut job = take(&jobs);
    say(&mut job, Channel::Answer, "Half");
    browser.until("document.querySelector('.answer .markdown')?.textContent === 'Half'");
    browser.open(server.at);
    browser.until("document.querySelector('#chat-list .title')");
    browser.click("#chat-list .title");
    assert_eq!(shown(&browser), json!(["one", "Half"]));
    assert!(browser.text(".answer .facts").contains("stopped"));
    assert_eq!(browser.text(".answer .trouble"), "", "no server has to do with it");
    until(|| (job.listener)(Update::Waiting).is_break());
}

#[test]
fn two_tabs_go_on_with_one_conversation() {
    let Some((_server, browser, jobs)) = page_of_jobs() else { return };
    talk(&browser, &jobs, "one", "First.");
    browser.run("window.tab = window.open('/')");
    browser.until("window.tab.document.querySelector('#chat-list .title')");
    browser.run("window.tab.document.querySelector('#chat-list .title').click()");
    browser.until("window.tab.document.querySelectorAll('article').length === 2");
    talk(&browser, &jobs, "two", "Second.");
    let told = "[...window.tab.document.querySelectorAll('.answer .markdown')].at(-1).textContent";
    browser.until(&format!("{told} === 'Second.'"));
    browser.run(
        "const page = window.tab.document; page.querySelector('#prompt').value = 'three'; \
         page.querySelector('#composer').requestSubmit()",
    );
    answer(&jobs, "Third.");
    let all = json!(["one", "First.", "two", "Second.", "three", "Third."]);
    browser.until(
        "[...document.querySelectorAll('.answer .markdown')].at(-1).textContent === 'Third.'",
    );
    assert_eq!((shown(&browser), kept(&browser)), (all.clone(), all));
}
