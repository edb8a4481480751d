// New data every few seconds, if the page comes from `klms serve`.
function follow(seconds) {
  let last = '';
  const ask = async () => {
    try {
      const answer = await fetch('data.json', { cache: 'no-cache' });
      if (!answer.ok) throw new Error(answer.statusText);
      const news = await answer.text();
      if (news !== last) render(JSON.parse((last = news)), true);
    } catch {
      document.getElementById('state').textContent = 'The server does not answer. This page shows its last data.';
      last = '';
    }
    setTimeout(ask, seconds * 1000);
  };
  setTimeout(ask, seconds * 1000);
}
