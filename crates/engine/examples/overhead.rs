#![allow(warnings, clippy::all, clippy::pedantic)]
use modelless_engine::*; use modelless_types::*; use std::time::*; use std::sync::Arc;
use std::os::fd::*;
fn stats(name:&str, mut v: Vec<f64>){ v.sort_by(|a,b|a.total_cmp(b)); let n=v.len(); println!("{name:52} p50 {:7.1} p90 {:7.1} p99 {:7.1} us", v[n/2], v[n*9/10], v[n*99/100]); }
fn busy(us:u64){ let t=Instant::now(); while t.elapsed()<Duration::from_micros(us){} }
#[tokio::main(flavor="multi_thread", worker_threads=2)]
async fn main(){
  let lib=Library::locate(None,&default_engines_dir()).unwrap();
  let exe=std::env::current_exe().unwrap(); let bin=exe.parent().unwrap().parent().unwrap().join("modelless-test-runner");
  let cfg=ProcessConfig{library:lib.path.clone(),command:vec![bin.display().to_string()],..Default::default()};
  let e=Arc::new(ProcessEngine::new(cfg).unwrap());
  for (n,file,item) in [(1u32,"crates/engine/tests/models/echo.onnx",16usize),(2,"examples/fashion/models/cnn_m.onnx",3136)] {
    let spec=LoadSpec{variant:VariantId(n),model:ModelId(n),artefact:std::fs::File::open(file).unwrap(),settings:VariantSettings{engine:modelless_types::Engine::Onnx,precision:"fp32".into(),threads:1,max_batch:8},lanes:1,expect:None};
    let l=e.load(spec).await.unwrap(); println!("{file} load {} memory {} slots {}", l.load_time,l.memory,l.slots);
    for gap in [0u64,5000]{ let reps=if gap==0{3000}else{500};
      let (mut cb,mut task,mut runs,mut sub)=(vec![],vec![],vec![],vec![]);
      for _ in 0..reps{ let mut s=e.slot(VariantId(n),0,1).unwrap(); s.input_mut(0).fill(0);
        let (tx,rx)=tokio::sync::oneshot::channel(); let t=Instant::now();
        e.submit(s,Duration::from_secs(5),Box::new(move |r|{ let at=t.elapsed(); let o=r.unwrap(); let us=o.run_us; drop(o); let _=tx.send((at,us)); }));
        let s_at=t.elapsed();
        let (at,us)=rx.await.unwrap(); let end=t.elapsed();
        cb.push(at.as_nanos() as f64/1e3-us as f64); task.push(end.as_nanos() as f64/1e3-us as f64); runs.push(us as f64); sub.push(s_at.as_nanos() as f64/1e3);
        if gap>0 {tokio::time::sleep(Duration::from_micros(gap)).await;} }
      stats(&format!("gap {gap}: submit call"),sub); stats(&format!("gap {gap}: run_us in the runner"),runs); stats(&format!("gap {gap}: submit -> done, over run_us"),cb); stats(&format!("gap {gap}: submit -> awaiting task, over run_us"),task);
    }
  }
  // in-process baseline
  let env=ort::init_from(&lib.path).unwrap().build().unwrap();
  let mut s=ort::session::Session::builder(&env).unwrap().with_intra_threads(1).unwrap().with_intra_op_spinning(false).unwrap().commit_from_file("examples/fashion/models/cnn_m.onnx").unwrap();
  for gap in [0u64,5000]{ let mut v=vec![]; for _ in 0..(if gap==0{3000}else{500}){ let x=vec![0f32;784]; let t=Instant::now(); let input=ort::value::Tensor::from_array(([1i64,1,28,28],x)).unwrap(); let o=s.run(ort::inputs![input]).unwrap(); drop(o); v.push(t.elapsed().as_nanos() as f64/1e3); if gap>0{std::thread::sleep(Duration::from_micros(gap));} } stats(&format!("in-process cnn_m gap {gap}"),v); }
  // reader: dedicated thread or tokio
  for work in [0u64,100]{ for tok in [false,true]{
    use rustix::event::*; let a=Arc::new(eventfd(0,EventfdFlags::empty()).unwrap()); let b=Arc::new(eventfd(0,if tok{EventfdFlags::NONBLOCK}else{EventfdFlags::empty()}).unwrap());
    let (a2,b2)=(a.clone(),b.clone()); std::thread::spawn(move|| loop{ let mut x=[0u8;8]; rustix::io::read(&a2,&mut x).unwrap(); if work>0{busy(work);} rustix::io::write(&b2,&1u64.to_ne_bytes()).unwrap(); });
    let (tx,mut rx)=tokio::sync::mpsc::channel(4);
    if tok { let b3=b.clone(); tokio::spawn(async move{ let fd=tokio::io::unix::AsyncFd::new(b3).unwrap(); loop{ let mut g=fd.readable().await.unwrap(); let mut x=[0u8;8]; match rustix::io::read(fd.get_ref(),&mut x){Ok(_)=>{if tx.send(Instant::now()).await.is_err(){return;}},Err(_)=>g.clear_ready()} } }); }
    else { let b3=b.clone(); std::thread::spawn(move|| loop{ let mut x=[0u8;8]; rustix::io::read(&b3,&mut x).unwrap(); if tx.blocking_send(Instant::now()).is_err(){return;} }); }
    for gap in [0u64,5000]{ let (mut v,mut w)=(vec![],vec![]); for _ in 0..(if gap==0{3000}else{500}){ let t=Instant::now(); rustix::io::write(&a,&1u64.to_ne_bytes()).unwrap(); let at=rx.recv().await.unwrap(); w.push(t.elapsed().as_nanos() as f64/1e3-work as f64); v.push((at-t).as_nanos() as f64/1e3-work as f64); if gap>0{tokio::time::sleep(Duration::from_micros(gap)).await;} }
      stats(&format!("eventfd, {} reader, work {work} gap {gap}: reader",if tok{"tokio"}else{"thread"}),v); stats(&format!("   ... awaiting task"),w);} 
  }}
  e.shutdown().await; std::process::exit(0);
}
